// Reads manifests as a JSON list and prints, for each, its kind and what its schema says, or an empty text.
import { readFileSync } from "node:fs";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1";
import { PodMonitor, PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const kinds = { HTTPRoute, ScaledObject, PodMonitor, PrometheusRule };
const said = JSON.parse(readFileSync(0, "utf8")).map((manifest) => {
  try {
    new kinds[manifest.kind](manifest).validate();
    return [manifest.kind, ""];
  } catch (error) {
    return [manifest.kind, error.message];
  }
});
console.log(JSON.stringify(said));
