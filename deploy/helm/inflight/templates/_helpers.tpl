{{/* Kubernetes adds up to 18 characters for pods, and cuts names of more than 63. */}}
{{- define "inflight.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* They never change, because selectors of Deployments cannot. */}}
{{- define "inflight.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.labels" -}}
{{ include "inflight.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The security settings of every container. */}}
{{- define "inflight.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Asks Triton for a path. Triton listens on the pod's loopback address, where only commands in the pod reach it. */}}
{{- define "inflight.ask" -}}
exec:
  command: [python3, -c, "import urllib.request as u; u.urlopen('http://127.0.0.1:8000{{ . }}', timeout=5)"]
timeoutSeconds: 10
{{- end -}}
