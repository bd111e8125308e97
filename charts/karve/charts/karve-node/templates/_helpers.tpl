{{- /* As a part of the chart karve it goes by another name there. */ -}}
{{- define "karve-node.name" -}}
{{- default "karve-node" .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "karve-node.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "karve-node.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else if hasPrefix (printf "%s-" .Release.Name) $name -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "karve-node.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "karve-node.selector" -}}
app.kubernetes.io/name: {{ include "karve-node.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "karve-node.labels" -}}
helm.sh/chart: {{ printf "karve-node-%s" .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "karve-node.selector" . }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What the metadata of an object holds beside its name: labels, and annotations, which may be the object's own. */ -}}
{{- define "karve-node.metadata" -}}
labels:
  {{- index . 1 | nindent 2 }}
{{- with merge (dict) (index . 2) (index . 0).Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "karve-node.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "karve-node.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The ConfigMap of named configurations, "" for none. */ -}}
{{- define "karve-node.configMap" -}}
{{- $config := .Values.config -}}
{{- if and $config.name $config.map -}}
{{- fail "config.name and config.map exclude each other: the configurations are in one ConfigMap" -}}
{{- end -}}
{{- if and $config.map $config.default (not (hasKey $config.map $config.default)) -}}
{{- fail (printf "config.default is %q, which is not in config.map; there is %s" $config.default (keys $config.map | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and $config.default (not $config.map) (not $config.name) -}}
{{- fail "config.default names a configuration, and there are none: give config.map or config.name" -}}
{{- end -}}
{{- if $config.name -}}
{{- $config.name -}}
{{- else if $config.map -}}
{{- printf "%s-configs" (include "karve-node.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- /* The text that says in which ways devices may be told to the container runtime. */ -}}
{{- define "karve-node.strategies" -}}
{{- if .Values.deviceListStrategy -}}
{{- .Values.deviceListStrategy -}}
{{- else -}}
{{- values .Values.config.map | sortAlpha | join "\n" -}}
{{- end -}}
{{- end -}}

{{- /* "true" when the agent has to see CDI specs. What an existing ConfigMap says is not known. */ -}}
{{- define "karve-node.cdi" -}}
{{- if or (contains "cdi-" (include "karve-node.strategies" .)) (and .Values.config.name (not .Values.deviceListStrategy)) -}}true{{- end -}}
{{- end -}}

{{- /* "true" when the agent has to ask for its GPUs by a mount. */ -}}
{{- define "karve-node.volumeMounts" -}}
{{- if contains "volume-mounts" (include "karve-node.strategies" .) -}}true{{- end -}}
{{- end -}}

{{- /* The driver's folder that the agent needs; "" when the container runtime brings the driver. */ -}}
{{- define "karve-node.driverRoot" -}}
{{- if ne (default "/" .Values.nvidiaDriverRoot) "/" -}}{{- .Values.nvidiaDriverRoot -}}{{- end -}}
{{- end -}}

{{- define "karve-node.securityContext" -}}
{{- if .Values.securityContext -}}
{{- toYaml .Values.securityContext -}}
{{- else -}}
{{- if .Values.compatWithCPUManager -}}
privileged: true # The CPU manager would take the device files from it.
{{- else -}}
privileged: false
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}
readOnlyRootFilesystem: true
runAsUser: 0 # The kubelet's sockets are root's.
{{- end -}}
{{- end -}}

{{- /* The image of the containers. */ -}}
{{- define "karve-node.image" -}}
{{- with .Values.image -}}
{{- if not .repository -}}
{{- fail "image.repository is required (node.image.repository in the chart karve), because Karve publishes no images yet: build and push your own with `make image`, see docs/install.md#1-the-images" -}}
{{- end -}}
image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
{{- end -}}

{{- /* The nodes of the pods, and what they tolerate. */ -}}
{{- define "karve-node.place" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.affinity }}
affinity:
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else if not .Values.nodeSelector }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: # any of them
      - matchExpressions:
        - {key: karve.sh/gpunodeclass, operator: Exists}
      - matchExpressions:
        - {key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}
      - matchExpressions:
        - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
{{- end }}
tolerations:
  {{- toYaml .Values.tolerations | nindent 2 }}
{{- end -}}

{{- /* The CEL expression for: of a map, only the keys in a list have changed. */ -}}
{{- define "karve-node.unchanged" -}}
{{- $new := index . 0 -}}
{{- $old := index . 1 -}}
{{- $own := toJson (index . 2) -}}
{{ $new }}.all(field, field in {{ $own }} || field in {{ $old }} && {{ $new }}[field] == {{ $old }}[field]) &&
{{ $old }}.all(field, field in {{ $own }} || field in {{ $new }})
{{- end -}}
