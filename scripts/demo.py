"""`make demo`: a running server answers eight prompts side by side."""

import argparse
import sys
import threading
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from inflight_client import Client, InflightError

PROMPTS = (
    "Once upon a time, in a house at the edge of the sea,",
    "The three most important rules of good cooking are",
    "If I could live anywhere in the world, I would",
    "A short letter to a friend who has just moved to another country:\n\nDear Anna,",
    "In simple words, photosynthesis is",
    "The history of the bicycle begins",
    "To learn a new language well, you should first",
    "The best thing about rainy days is",
)
COLUMNS = (1, 2, 4, 8)
MIN_PANEL_WIDTH = 38
MIN_LINE_WIDTH = 60
REFRESHES_PER_SECOND = 15


@dataclass
class PromptStream:
    """One prompt and the part of its answer received so far. Only the thread that reads the stream writes to it."""

    prompt: str
    text: str = ""
    tokens: int = 0
    seconds: float = 0.0
    error: str | None = None

    def read(self, client: Client, max_tokens: int) -> None:
        """Stream the answer until its end or an error."""
        started = time.perf_counter()
        try:
            # Ignoring the end of text gives every answer the same number of tokens.
            with client.stream(self.prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.7, seed=1) as stream:
                for chunk in stream:
                    self.text += chunk.text
        except InflightError as error:
            self.error = f"{type(error).__name__}: {error}"
        else:
            self.seconds = time.perf_counter() - started
            self.tokens = max_tokens

    def panel(self, console: Console, width: int, height: int) -> Panel:
        """Return a frame with the end of the text, as much as fits."""
        subtitle = None
        if self.error:
            body, style = Text(self.error), "red"
        else:
            lines = Text(self.text.lstrip()).wrap(console, width - 4)
            body, style = Text("\n").join(lines[2 - height :]), "cyan"
        if self.tokens:
            subtitle, style = f"{self.tokens} tokens, {self.tokens / self.seconds:.1f}/s", "green"
        title = Text(" ".join(self.prompt.split()), style="bold")
        title.truncate(width - 6, overflow="ellipsis")
        return Panel(body, title=title, title_align="left", subtitle=subtitle, border_style=style, height=height)


def grid(answers: list[PromptStream], console: Console) -> Table:
    """Return all answers in as many columns as fit into the terminal."""
    columns = max(count for count in COLUMNS if count == 1 or count * MIN_PANEL_WIDTH <= console.width)
    rows = len(answers) // columns
    height = max(3, (console.height - 2) // rows)
    table = Table.grid(expand=True)
    for _ in range(columns):
        table.add_column(ratio=1)
    for row in range(rows):
        of_row = answers[row * columns : (row + 1) * columns]
        table.add_row(*(answer.panel(console, console.width // columns, height) for answer in of_row))
    return table


def watch(answers: list[PromptStream], threads: list[threading.Thread], console: Console) -> None:
    """Show the answers in a terminal until all threads have ended."""
    with Live(
        get_renderable=lambda: grid(answers, console),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
    ):
        for thread in threads:
            thread.join()


def print_lines(answers: list[PromptStream], threads: list[threading.Thread]) -> None:
    """Print the answers line by line, each with the number of its prompt, until all threads have ended."""
    printed = [0] * len(answers)
    running = True
    while running:
        running = any(thread.is_alive() for thread in threads)
        for index, answer in enumerate(answers):
            pending = answer.text[printed[index] :]
            end = pending.rfind(" ") + 1 if running else len(pending)
            if end >= MIN_LINE_WIDTH or (end and not running):
                print(f"{index + 1}| {' '.join(pending[:end].split())}", flush=True)
                printed[index] += end
        time.sleep(1 / REFRESHES_PER_SECOND)


def run(client: Client, max_tokens: int) -> int:
    """Send all prompts at once, show the answers and return the exit status."""
    console = Console()
    answers = [PromptStream(prompt) for prompt in PROMPTS]
    threads = [threading.Thread(target=answer.read, args=(client, max_tokens)) for answer in answers]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        if console.is_terminal:
            watch(answers, threads, console)
        else:
            print_lines(answers, threads)
    except KeyboardInterrupt:
        client.close()
        return 130
    seconds = time.perf_counter() - started
    tokens = sum(answer.tokens for answer in answers)
    print(f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.1f} tokens/s over {len(answers)} streams")
    failed = [answer.error for answer in answers if answer.error]
    if failed:
        print(f"error: {len(failed)} streams failed, the first with {failed[0]}", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC address of the server (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens for each prompt (%(default)s)")
    options = parser.parse_args()
    with Client(options.url) as client:
        if not client.is_ready():
            print(f"error: no model is ready at {options.url}; start one with `make serve`", file=sys.stderr)
            return 1
        return run(client, options.max_tokens)


if __name__ == "__main__":
    sys.exit(main())
