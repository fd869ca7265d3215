"""A model of the hub is served at the revision that was asked for, and at one commit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.reference.tiny_models import SERVED, save_model

# All in one process, because importing torch takes seconds. The hub's cache is its only source of models.
SERVE = """
import json, logging, sys
from inflight import Engine, EngineConfig, SamplingParams
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
answers = []
for revision in json.loads(sys.argv[1]):
    config = EngineConfig(model="someone/tiny", revision=revision, dtype="float32", device="cpu", kv_cache_tokens=256)
    (output,) = Engine(config).generate([5, 6, 7], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    answers.append(output.token_ids)
print(json.dumps(answers))
"""
OLD, NEW = "a" * 40, "b" * 40


def test_a_revision_names_what_is_served(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--someone--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(NEW)
    (model / "refs" / "v1").write_text(OLD)
    served = save_model(SERVED["llama"].config, model / "snapshots" / OLD)
    shutil.copytree(model / "snapshots" / OLD, model / "snapshots" / NEW)
    served.lm_head.weight.data = served.lm_head.weight.data.flip(0)
    served.save_pretrained(model / "snapshots" / NEW)

    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, "-c", SERVE, json.dumps(["main", "v1", OLD])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    new, tagged, old = json.loads(run.stdout)
    assert tagged == old != new
    assert f"model someone/tiny is at commit {NEW}" in run.stderr
    assert f"model someone/tiny is at commit {OLD}" in run.stderr
