{{- define "karve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "karve.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "karve.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "karve.selector" . }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What the metadata of an object holds beside its name: labels, and annotations, which may be the object's own. */ -}}
{{- define "karve.metadata" -}}
labels:
  {{- index . 1 | nindent 2 }}
{{- with merge (dict) (index . 2) (index . 0).Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "karve.network" -}}
dnsPolicy: {{ .Values.dnsPolicy }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- end -}}

{{- define "karve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "karve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The reference of an image: its values, the tag for when they name none, and where its values are. */ -}}
{{- define "karve.image" -}}
{{- $image := index . 0 -}}
{{- if not $image.repository -}}
{{- fail (printf "%s.repository is required, because Karve publishes no images yet: build and push your own with `make image`, see docs/install.md#1-the-images" (index . 2)) -}}
{{- end -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 1) $image.tag }}{{ end }}
{{- end -}}

{{- define "karve.gpuCheckImage" -}}
{{- if .Values.settings.gpuCheckImage -}}
{{- .Values.settings.gpuCheckImage -}}
{{- else if .Values.node.enabled -}}
{{- include "karve.image" (list .Values.node.image .Chart.AppVersion "node.image") -}}
{{- end -}}
{{- end -}}


{{- define "karve.scheduler.fullname" -}}
{{- printf "%s-scheduler" (include "karve.fullname" . | trunc 53 | trimSuffix "-") -}}
{{- end -}}

{{- define "karve.scheduler.selector" -}}
{{ include "karve.selector" . | replace "component: controller" "component: scheduler" }}
{{- end -}}

{{- define "karve.scheduler.labels" -}}
{{ include "karve.labels" . | replace "component: controller" "component: scheduler" }}
{{- end -}}

{{- /* The scheduler fills one node before the next, where it spreads them as it comes. What pods themselves prefer counts as ever; a taint that asks to stay away
counts more than how full a node is, and what nobody asked for, to balance nodes and to spread pods, does not count. */ -}}
{{- define "karve.scheduler.config" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ include "karve.scheduler.fullname" . }}
  resourceNamespace: {{ .Release.Namespace }}
profiles:
- schedulerName: {{ .Values.scheduler.name }}
  plugins:
    score:
      disabled:
      - {name: NodeResourcesBalancedAllocation}
      - {name: NodeResourcesFit}
      - {name: TaintToleration}
      enabled:
      - {name: NodeResourcesFit, weight: 5}
      - {name: TaintToleration, weight: 10}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources:
        - {name: nvidia.com/gpu.shared, weight: 3}
        - {name: nvidia.com/gpu, weight: 3}
        - {name: cpu, weight: 1}
        - {name: memory, weight: 1}
  - name: PodTopologySpread
    args:
      defaultingType: List
{{- end -}}

{{- /* Whether the controller's webhook does what policies do elsewhere: the API server serves no MutatingAdmissionPolicies, which it does from 1.36 on. */ -}}
{{- define "karve.memoryAliases.webhook" -}}
{{- if and .Values.memoryAliases.gpuNodeClass (not (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")) (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version) -}}
true
{{- end -}}
{{- end -}}

{{- define "karve.ui.fullname" -}}
{{- printf "%s-ui" (include "karve.fullname" . | trunc 53 | trimSuffix "-") -}}
{{- end -}}

{{- define "karve.ui.selector" -}}
{{ include "karve.selector" . | replace "component: controller" "component: ui" }}
{{- end -}}

{{- define "karve.ui.labels" -}}
{{ include "karve.labels" . | replace "component: controller" "component: ui" }}
{{- end -}}

{{- /* The CEL expression for: of a map, only the keys in a list have changed. */ -}}
{{- define "karve.unchanged" -}}
{{- $new := index . 0 -}}
{{- $old := index . 1 -}}
{{- $own := toJson (index . 2) -}}
{{ $new }}.all(field, field in {{ $own }} || field in {{ $old }} && {{ $new }}[field] == {{ $old }}[field]) &&
{{ $old }}.all(field, field in {{ $own }} || field in {{ $new }})
{{- end -}}
