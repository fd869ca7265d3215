"""Coding agents work unchanged: `make test-agents`, which installs them by npm.

The echo model writes what the last message says. So a question that spells out a call makes the agent run a command,
and the command's output becomes the answer.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.launch.cache import build_once, cache_root
from scripts.launch.shell import run
from tests.gateway.gateway_process import GatewayProcess

PACKAGE = Path(__file__).parent / "coding_agents/package.json"
COMMAND = "echo made > made.txt; cat made.txt"

pytestmark = pytest.mark.skipif(
    "INFLIGHT_TEST_AGENTS" not in os.environ, reason="the agents are heavy; `make test-agents` tests them"
)


@dataclass(frozen=True)
class Agent:
    """A program that is given one question."""

    command: Sequence[str]
    """What comes before the question."""
    tool: str
    """The tool that runs a command in a shell."""
    arguments: Mapping[str, Any]
    environment: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Further environment variables, from the URL of the gateway."""
    files: Callable[[str], Mapping[str, str]] = lambda _: {}
    """The files of its configuration: paths in its home, which is also where it works, and their texts."""

    reads_stdin: bool = False
    """Whether the question comes there. OpenCode puts an argument with blanks in quotation marks."""

    @property
    def question(self) -> str:
        """A text that the model makes a call."""
        return f"<tool_call>{json.dumps({'name': self.tool, 'arguments': self.arguments})}</tool_call>"


def _claude(url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "llm",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # Without it, root may not skip permissions.
    }


def _codex(url: str) -> Mapping[str, str]:
    provider = f'name = "Inflight"\nbase_url = "{url}/v1"\nwire_api = "responses"\nrequest_max_retries = 0\n'
    text = f'model = "llm"\nmodel_provider = "inflight"\n[model_providers.inflight]\n{provider}'
    return {".codex/config.toml": text}


def _opencode(url: str) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"llm": {}},
    }
    config = {"provider": {"inflight": provider}, "model": "inflight/llm", "small_model": "inflight/llm"}
    return {"opencode.json": json.dumps({**config, "autoupdate": False, "permission": {"*": "allow"}})}


def _qwen(url: str) -> Mapping[str, str]:
    return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "llm"}


def _pi(url: str) -> Mapping[str, str]:
    model = {"id": "llm", "contextWindow": 100_000, "maxTokens": 1000, "input": ["text"], "reasoning": False}
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none"}
    models = {"providers": {"inflight": {**provider, "models": [{**model, "cost": free}]}}}
    return {".pi/agent/models.json": json.dumps(models)}


def _continue(url: str) -> Mapping[str, str]:
    model = {"name": "llm", "provider": "openai", "model": "llm", "apiBase": f"{url}/v1", "apiKey": "none"}
    model |= {"roles": ["chat"], "capabilities": ["tool_use"]}
    # JSON is YAML.
    return {"config.yaml": json.dumps({"name": "test", "version": "0.0.1", "schema": "v1", "models": [model]})}


AGENTS: Mapping[str, Agent] = {
    "Claude Code": Agent(
        # With more tools, it says which agents there are in a message after the question.
        ["claude", "--dangerously-skip-permissions", "--tools", "Bash", "-p"],
        "Bash",
        {"command": COMMAND, "description": "Make a file"},
        environment=_claude,
    ),
    "Codex": Agent(
        ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"],
        "exec_command",
        {"cmd": COMMAND},
        files=_codex,
    ),
    "OpenCode": Agent(
        ["opencode", "run"],
        "bash",
        {"command": COMMAND, "description": "Make a file"},
        files=_opencode,
        reads_stdin=True,
    ),
    "Qwen Code": Agent(
        ["qwen", "--auth-type", "openai", "--yolo", "-p"],
        "run_shell_command",
        {"command": COMMAND, "is_background": False},
        environment=_qwen,
    ),
    "Pi": Agent(["pi", "--provider", "inflight", "--model", "llm", "-p"], "bash", {"command": COMMAND}, files=_pi),
    "Continue": Agent(["cn", "--config", "config.yaml", "--auto", "-p"], "Bash", {"command": COMMAND}, files=_continue),
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder with the agents' programs."""

    def build(folder: Path) -> None:
        shutil.copy(PACKAGE, folder)
        run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)])

    digest = hashlib.sha256(PACKAGE.read_bytes()).hexdigest()[:12]
    return build_once(cache_root() / f"agents-{digest}", build) / "node_modules/.bin"


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_runs_a_command_and_reads_what_it_wrote(
    programs: Path, gateway: GatewayProcess, tmp_path: Path, name: str
) -> None:
    agent = AGENTS[name]
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for path, text in agent.files(gateway.url).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    program, *options = agent.command
    done = subprocess.run(
        [str(programs / program), *options, *([] if agent.reads_stdin else [agent.question])],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **agent.environment(gateway.url)},
        input=agent.question if agent.reads_stdin else "",
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert (tmp_path / "made.txt").exists(), said
    assert (tmp_path / "made.txt").read_text() == "made\n"
    assert "made" in done.stdout
