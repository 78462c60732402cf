{{- /*
The pieces that the objects are put together from. Values say what is in a pod (`neuron-pd cluster --format helm` makes
them); these templates only place it. Each takes a dict: root, component, values.
*/ -}}

{{- define "neuron-pd.labels" -}}
app.kubernetes.io/name: neuron-pd
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "neuron-pd.selector" -}}
{{ include "neuron-pd.labels" . }}
{{- if hasKey .values "nodes" }}
neuron-pd/role: {{ .component }}
{{- end }}
{{- end }}

{{- define "neuron-pd.metadata" -}}
name: {{ .root.Release.Name }}-{{ .component }}
labels:
  {{- include "neuron-pd.labels" . | nindent 2 }}
{{- end }}

{{- define "neuron-pd.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "neuron-pd.metadata" . | nindent 2 }}
spec:
  {{- if hasKey .values "nodes" }}
  clusterIP: None
  {{- end }}
  selector:
    {{- include "neuron-pd.selector" . | nindent 4 }}
  ports:
    {{- range $name, $number := .values.ports }}
    - name: {{ $name }}
      port: {{ $number }}
    {{- end }}
{{- end }}

{{- define "neuron-pd.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "neuron-pd.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "neuron-pd.labels" . | nindent 6 }}
{{- end }}

{{- define "neuron-pd.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "neuron-pd.metadata" . | nindent 2 }}
spec:
  replicas: {{ .values.replicas }}
  {{- if hasKey .values "nodes" }}
  strategy:
    type: Recreate
  {{- end }}
  selector:
    matchLabels:
      {{- include "neuron-pd.selector" . | nindent 6 }}
  template:
    {{- include "neuron-pd.pod" (merge (dict "labels" (include "neuron-pd.selector" .)) .) | nindent 4 }}
{{- end }}

{{- /* The pod of a component; a group's other pods differ in `changed`, and answer no probes. */ -}}
{{- define "neuron-pd.pod" -}}
{{- $container := deepCopy .values.container }}
{{- if .changed }}
{{- $container = mergeOverwrite (omit $container "startupProbe" "readinessProbe" "livenessProbe") .changed }}
{{- end }}
{{- $environment := concat (.environment | default list) ($container.env | default list) (.values.extraEnv | default list) }}
{{- $words := concat ($container.args | default list) (.values.extraArgs | default list) }}
metadata:
  labels:
    {{- .labels | nindent 4 }}
spec:
  {{- if eq .component "proxy" }}
  serviceAccountName: {{ .root.Release.Name }}-proxy
  {{- end }}
  {{- with .values.pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ required (printf "say which image the %s has: %s.image" .component .component) .values.image | quote }}
      {{- with $environment }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      args:
        {{- toYaml $words | nindent 8 }}
      {{- toYaml (omit $container "env" "args") | nindent 6 }}
      {{- if not .changed }}
      ports:
        {{- range $name, $number := .values.ports }}
        - name: {{ $name }}
          containerPort: {{ $number }}
        {{- end }}
      {{- end }}
{{- end }}
