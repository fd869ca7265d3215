"""The Helm chart is rendered by Helm, and its manifests fit Kubernetes' schemas, each other, and the programs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from inflight_cli.command_line import make_parser
from inflight_gateway.__main__ import main
from scripts.launch.exposure import check_loopback, restrict
from tests.deploy.conftest import CHART, DEPLOY, Manifest, Render

CONFIG = Path(__file__).parents[2] / "model_repository/llm/config.pbtxt"
PORT = 9000
# The oldest release that Chart.yaml allows, and the newest of the schemas.
RELEASES = ("1.29", "1.37")
EVERYTHING = (
    f"--set-file=server.config={CONFIG}",
    "--set=server.args={--model-config-name=latency},gateway.args={--served-model-name=mine}",
    '--set-json=server.env=[{"name": "HF_HUB_OFFLINE", "value": "1"}]',
    "--set=modelVolume.persistentVolumeClaim.claimName=models",
    "--set=networkPolicy.from[0].podSelector.matchLabels.app=proxy",
    "--set=runtimeClassName=nvidia,nodeSelector.pool=gpu,affinity.podAntiAffinity=null",
    '--set-json=podAnnotations={"sidecar.istio.io/inject": "false"}',
    "--set=imagePullSecrets[0].name=registry,priorityClassName=serving",
    "--set=route.enabled=true,route.parentRefs[0].name=edge,route.hostnames={llm.example}",
    "--set=inferencePool.enabled=true,autoscaling.enabled=true",
    "--set=prometheusOperator.enabled=true,prometheusOperator.labels.release=stack",
)
CUSTOM = {"HTTPRoute", "InferencePool", "ScaledObject", "PodMonitor", "PrometheusRule"}
VALUES = {
    "cpu": (),
    "gpu": (f"--values={CHART}/values-gpu.yaml",),
    "everything": (f"--values={CHART}/values-gpu.yaml", *EVERYTHING),
}


@pytest.fixture(scope="session", params=VALUES)
def manifests(request: pytest.FixtureRequest, render: Render) -> dict[str, Manifest]:
    return render(*VALUES[request.param])


@pytest.fixture(scope="session")
def everything(render: Render) -> dict[str, Manifest]:
    return render(*VALUES["everything"])


def test_lint(helm_run: Callable[..., Any]) -> None:
    result = helm_run("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout


def test_manifests_fit_kubernetes_schemas(manifests: dict[str, Manifest]) -> None:
    checked = [manifest for kind, manifest in manifests.items() if kind not in CUSTOM]
    assert len(checked) >= 4
    for manifest in checked:
        for release in RELEASES:
            kubernetes_validate.validate(manifest, release, strict=True)


def test_kinds_of_operators_are_there_only_when_asked_for(render: Render, everything: dict[str, Manifest]) -> None:
    assert render().keys() == {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    assert everything.keys() == render().keys() | CUSTOM | {"ConfigMap"}


def pod(manifests: dict[str, Manifest]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


def containers(manifests: dict[str, Manifest]) -> dict[str, Any]:
    spec = pod(manifests)
    return {container["name"]: container for container in (*spec["initContainers"], *spec["containers"])}


def test_only_the_gateways_port_is_open(manifests: dict[str, Manifest]) -> None:
    found = containers(manifests)
    (port,) = found["gateway"]["ports"]
    assert port["containerPort"] == PORT
    assert "ports" not in found["server"]
    # They would complain about another address than loopback.
    assert sum("-address=127.0.0.1" in argument for argument in found["server"]["args"]) == 3
    check_loopback(found["server"]["args"])
    policy = manifests["NetworkPolicy"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_selectors_match_the_pods(everything: dict[str, Manifest]) -> None:
    labels = everything["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        everything[kind]["spec"]["selector"] for kind in ("Deployment", "PodDisruptionBudget", "InferencePool")
    ]
    selectors += [everything["NetworkPolicy"]["spec"]["podSelector"], everything["PodMonitor"]["spec"]["selector"]]
    for selector in (*(selector["matchLabels"] for selector in selectors), everything["Service"]["spec"]["selector"]):
        assert selector.items() <= labels
        assert len(selector) == 2


def test_no_container_is_privileged(manifests: dict[str, Manifest]) -> None:
    context = pod(manifests)["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] == 1000
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(manifests).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_every_container_says_what_it_needs(manifests: dict[str, Manifest]) -> None:
    for container in containers(manifests).values():
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_values_of_the_pod_arrive(everything: dict[str, Manifest]) -> None:
    spec, template = pod(everything), everything["Deployment"]["spec"]["template"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "serving"
    assert spec["runtimeClassName"] == "nvidia"
    assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert "checksum/config" in template["metadata"]["annotations"]


def test_all_volumes_are_declared_and_used(manifests: dict[str, Manifest]) -> None:
    mounted = {mount["name"] for container in containers(manifests).values() for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod(manifests)["volumes"]}
    for volume in pod(manifests)["volumes"]:
        assert len(volume) == 2, "a volume has a name and one source"


def test_triton_ends_after_the_gateway_which_drains_first(manifests: dict[str, Manifest]) -> None:
    found = containers(manifests)
    # Kubernetes ends a sidecar after the containers proper.
    assert found["server"]["restartPolicy"] == "Always"
    assert "restartPolicy" not in found["gateway"]
    *_, command = found["gateway"]["lifecycle"]["preStop"]["exec"]["command"]
    arguments = command.rpartition("inflight ")[2].split()
    assert arguments[0] == "drain"
    assert make_parser().parse_args(arguments).timeout == 30
    assert pod(manifests)["terminationGracePeriodSeconds"] >= 5 + 30 + 30


def test_gateway_takes_its_arguments(manifests: dict[str, Manifest], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(containers(manifests)["gateway"]["args"]) == 1
    # Everything is valid. Only the file of the Secret is missing here.
    assert "No such file or directory: '/run/secrets/inflight/api-keys.toml'" in capsys.readouterr().err


def test_chart_restricts_what_make_serve_restricts(manifests: dict[str, Manifest]) -> None:
    server = containers(manifests)["server"]
    assert set(restrict("$(OPERATOR_KEY)")) <= set(server["args"])
    assert server["env"][0]["name"] == "OPERATOR_KEY"


def test_config_replaces_the_image_s(everything: dict[str, Manifest], render: Render) -> None:
    assert everything["ConfigMap"]["data"]["config.pbtxt"] == CONFIG.read_text()
    mounts = {mount["mountPath"] for mount in containers(everything)["server"]["volumeMounts"]}
    assert "/models/llm/config.pbtxt" in mounts
    checksums = [
        found["Deployment"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for found in (everything, render())
    ]
    assert checksums[0] != checksums[1], "pods must be replaced when the configuration changes"


def test_requests_go_through_the_picker_to_the_gateway(everything: dict[str, Manifest], render: Render) -> None:
    pool = everything["InferencePool"]
    assert pool["spec"]["targetPorts"] == [{"number": PORT}]
    assert pool["spec"]["endpointPickerRef"] == {
        "name": "inflight-epp",
        "port": {"number": 9002},
        "failureMode": "FailOpen",
    }
    (rule,) = everything["HTTPRoute"]["spec"]["rules"]
    to_pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool["metadata"]["name"]}
    assert rule["backendRefs"] == [to_pool]
    labels = everything["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels["llm-d.ai/engine-type"] == "triton-tensorrt-llm"

    plain = render("--set=route.enabled=true,route.parentRefs[0].name=edge")
    (rule,) = plain["HTTPRoute"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": plain["Service"]["metadata"]["name"], "port": PORT}]


def test_autoscaler_owns_the_number_of_pods(everything: dict[str, Manifest], render: Render) -> None:
    assert render("--set=replicas=3")["Deployment"]["spec"]["replicas"] == 3
    assert "replicas" not in everything["Deployment"]["spec"]
    scaled = everything["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": everything["Deployment"]["metadata"]["name"]}
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "prometheus"
        # KEDA reads metadata as strings.
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_rules_of_the_operator_are_those_of_the_files(everything: dict[str, Manifest]) -> None:
    files = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    assert everything["PrometheusRule"]["spec"]["groups"] == [group for file in files for group in file["groups"]]
    assert everything["PrometheusRule"]["metadata"]["labels"]["release"] == "stack"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("autoscaling.kvCacheUsage=80", "maximum: got 80, want 1"),
        ("route.enabled=true", "minItems: got 0, want 1"),
    ],
)
def test_mistakes_in_values_are_named(helm_run: Callable[..., Any], setting: str, complaint: str) -> None:
    result = helm_run("template", "release", str(CHART), f"--set={setting}")
    assert result.returncode != 0
    assert complaint in result.stderr
