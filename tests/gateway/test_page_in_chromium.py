"""The page at /ui as people use it: in a browser, before a real model."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect, sync_playwright

from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_keys import FILE

CHROMIUM = shutil.which("chromium")
MILLISECONDS = 30_000
QUESTION = "Count from one to five."
LONG: dict[str, Any] = {"model": "llm", "max_tokens": 1500, "extra_body": {"ignore_eos": True}, "stream": True}
# A name that would be markup if the page took it for some.
TENANT = "<b id=bold>acme</b>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no program chromium, such as that of Debian's package"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM) as browser:
        yield browser


@pytest.fixture(scope="module")
def gate(drafting_server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(drafting_server.grpc_url, f"--metrics-url={drafting_server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture
def client(gate: GatewayProcess) -> Iterator[OpenAI]:
    with gate.openai() as client:
        yield client


@contextlib.contextmanager
def opened(browser: Browser, gateway: GatewayProcess, **context: Any) -> Iterator[Page]:
    """The page, which may neither report an error nor ask another host."""
    complaints: list[str] = []
    with browser.new_context(**context) as tab:
        page = tab.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if gateway.url not in request.url else None)
        page.goto(f"{gateway.url}/ui")
        yield page
    # The browser itself reports each answer that is an error.
    assert [text for text in complaints if not text.startswith("Failed to load resource")] == []


@contextlib.contextmanager
def running(client: OpenAI, count: int, **fields: Any) -> Iterator[None]:
    """Requests that run until the end of the block."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            next(stack.enter_context(client.completions.create(prompt="One, two,", **LONG, **fields)))
        yield


IS_DRAWN = """(title) => {
    const figure = [...document.querySelectorAll("figure")].find((each) => each.textContent.startsWith(title));
    const canvas = figure.querySelector("canvas");
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let pixels = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i] > data[i + 2] + 90 && data[i + 3] > 200) pixels++;
    return pixels > 20;
}"""
"""Whether a plot has some pixels of the colour that answers have."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_requests_appear_grow_and_leave(
    browser: Browser, gate: GatewayProcess, client: OpenAI, tmp_path: Path, scheme: Any
) -> None:
    rows = "#running li"
    with opened(browser, gate, color_scheme=scheme) as page:
        expect(page.locator("#running-rest")).to_have_text("Nothing runs.", timeout=MILLISECONDS)
        with running(client, 3, user=TENANT):
            expect(page.locator(rows)).to_have_count(3, timeout=MILLISECONDS)
            expect(page.locator("#running-count")).to_have_text("3 of 64")
            assert page.locator(f"{rows} .name").first.inner_text().startswith(TENANT)
            assert page.locator("#bold").count() == 0
            script = """() => {
                window.seen ??= new Set();
                const text = document.querySelector("#running .doing")?.textContent;
                if (text?.endsWith("tokens")) window.seen.add(text);
                return window.seen.size >= 3;
            }"""
            page.wait_for_function(script)
            page.wait_for_function("() => parseFloat(document.querySelector('#tokens-per-second').textContent) > 0")
            expect(page.locator("#step")).to_contain_text("tokens of answers")
            page.wait_for_function(IS_DRAWN, arg="Tokens per step")
            image = page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
            assert len(image) > 10_000
        expect(page.locator(rows)).to_have_count(0, timeout=MILLISECONDS)


def test_the_playground_streams_an_answer(browser: Browser, gate: GatewayProcess, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="llm", messages=messages, max_tokens=12, temperature=0)
    with opened(browser, gate) as page:
        page.fill("#prompt", QUESTION)
        page.fill("#max-tokens", "12")
        page.fill("#temperature", "0")
        page.evaluate("""() => {
            window.pieces = 0;
            new MutationObserver((changes) => { window.pieces += changes.length; })
                .observe(document.querySelector("#answer"), {childList: true});
        }""")
        page.click("#send")
        figures = page.locator("#figures")
        expect(figures).to_contain_text(f"{answer.usage.completion_tokens} tokens ", timeout=MILLISECONDS)
        expect(figures).to_contain_text("tokens per second")
        expect(page.locator("#send")).to_be_enabled()
        assert page.evaluate("document.querySelector('#answer').textContent") == answer.choices[0].message.content
        assert page.evaluate("window.pieces") > 3

        page.fill("#prompt", "Write a very long story about a river.")
        page.fill("#max-tokens", "1500")
        page.click("#send")
        expect(page.locator("#running li")).to_have_count(1, timeout=MILLISECONDS)
        page.click("#stop")
        expect(figures).to_contain_text("stopped")
        expect(page.locator("#running-rest")).to_have_text("Nothing runs.", timeout=MILLISECONDS)

        page.fill("#max-tokens", "100000")
        page.click("#send")
        expect(figures).to_contain_text("max_tokens")
        expect(figures).to_have_class("bad")


def test_with_keys_the_page_asks_for_one(
    browser: Browser, gate: GatewayProcess, client: OpenAI, drafting_server: TritonServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(FILE)
    arguments = (f"--metrics-url={drafting_server.metrics_url}", "--api-keys", str(keys))
    with GatewayProcess(drafting_server.grpc_url, *arguments) as guarded:
        guarded.wait_for(["/health"], 30)
        with guarded.openai("secret-a") as own, running(client, 2), running(own, 1), opened(browser, guarded) as page:
            page.fill("#key", "wrong")
            page.click("#key-form button")
            expect(page.locator("#problem")).to_have_text("the API key is wrong")
            page.fill("#key", "secret-a")
            page.click("#key-form button")
            expect(page.locator("#running li")).to_have_count(1, timeout=MILLISECONDS)
            expect(page.locator("#running-rest")).to_have_text("And 2 of other tenants.")
            expect(page.locator("#key-form")).to_be_hidden()
            page.fill("#max-tokens", "3")
            page.click("#send")
            expect(page.locator("#figures")).to_contain_text("3 tokens", timeout=MILLISECONDS)


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, gate: GatewayProcess, client: OpenAI) -> None:
    with opened(browser, gate, viewport={"width": 360, "height": 740}) as page, running(client, 2, user="long" * 60):
        expect(page.locator("#running li")).to_have_count(2, timeout=MILLISECONDS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_page_that_nobody_sees_asks_for_nothing(browser: Browser, gate: GatewayProcess) -> None:
    with opened(browser, gate) as page:
        expect(page.locator("#state")).to_have_text("live", timeout=MILLISECONDS)
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        expect(page.locator("#state")).to_have_text("paused")
        page.evaluate(hide, False)
        expect(page.locator("#state")).to_have_text("live")
