{{- define "drakkar.fullname" -}}
{{- if contains "drakkar" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-drakkar" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Labels by which pods of a part are found; (list $root part). They never change: selectors are immutable. */}}
{{- define "drakkar.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: drakkar
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "drakkar.labels" -}}
{{- $root := index . 0 -}}
{{ include "drakkar.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "drakkar.image" -}}
{{- if .Values.image.digest -}}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}{{- end -}}
{{- end -}}

{{/* Security of a container that needs nothing of its node. */}}
{{- define "drakkar.unprivileged" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "drakkar.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
{{- end -}}

{{/* A Deployment; dict root, part (also its component), args (list), settings (values of the part), port,
     tls (name of a Secret, or empty), address (whether it has to know its own). */}}
{{- define "drakkar.deployment" -}}
{{- $name := printf "%s-%s" (include "drakkar.fullname" .root) .part }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "drakkar.labels" (list .root .part) | nindent 4 }}
spec:
  replicas: {{ .settings.replicas }}
  selector:
    matchLabels: {{- include "drakkar.selector" (list .root .part) | nindent 6 }}
  # A replica is added before one goes: the one that leads hands its Lease over, and another is there to take it.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      labels: {{- include "drakkar.labels" (list .root .part) | nindent 8 }}
    spec:
      serviceAccountName: {{ $name }}
      {{- with .settings.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: {{ .part }}
        image: {{ include "drakkar.image" .root | quote }}
        imagePullPolicy: {{ .root.Values.image.pullPolicy }}
        args: {{- toYaml .args | nindent 8 }}
        ports: [{name: metrics, containerPort: {{ .port }}}]
        {{- include "drakkar.probes" . | nindent 8 }}
        {{- if .address }}
        env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
        {{- end }}
        resources: {{- toYaml .settings.resources | nindent 10 }}
        securityContext: {{- include "drakkar.unprivileged" . | nindent 10 }}
        {{- if .tls }}
        volumeMounts: [{name: tls, mountPath: /tls, readOnly: true}]
      volumes: [{name: tls, secret: {secretName: {{ .tls }}}}]
        {{- end }}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels: {{- include "drakkar.selector" (list .root .part) | nindent 12 }}
      {{- with include "drakkar.placement" .settings | trim }}
      {{- . | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "drakkar.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "drakkar.account" -}}
{{- $root := index . 0 }}{{ $part := index . 1 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "drakkar.fullname" $root }}-{{ $part }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "drakkar.labels" (list $root $part) | nindent 4 }}
{{- end -}}

{{/* A ClusterRole for the account of a part, and what binds it; dict root, part, rules. */}}
{{- define "drakkar.clusterrole" -}}
{{- $name := printf "%s-%s" (include "drakkar.fullname" .root) .part -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- include "drakkar.labels" (list .root .part) | nindent 4 }}
rules:
{{ .rules | trim }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "drakkar.labels" (list .root .part) | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ $name }}, namespace: {{ .root.Release.Namespace }}}
{{- end -}}

{{/* The Lease of a part, and no other; dict root, part, namespace, leases. RBAC cannot restrict create to a name. */}}
{{- define "drakkar.leaserole" -}}
{{- $name := printf "%s-%s" (include "drakkar.fullname" .root) .part -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "drakkar.labels" (list .root .part) | nindent 4 }}
rules:
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: {{ toJson .leases }}
  verbs: [get, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "drakkar.labels" (list .root .part) | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ $name }}, namespace: {{ .root.Release.Namespace }}}
{{- end -}}

{{/* Names of the drivers that are on and run on nodes. */}}
{{- define "drakkar.nodedrivers" -}}
{{- $on := list -}}
{{- range $name := list "tpu" "gpu" "nic" "cpu" "computedomain" "example" -}}
{{- if (index $.Values.drivers $name).enabled -}}{{- $on = append $on $name -}}{{- end -}}
{{- end -}}
{{- toJson $on -}}
{{- end -}}

{{/* The part that a driver has on nodes, and its values. tpu: what has its plain name is the part for the cluster. */}}
{{- define "drakkar.nodepart" -}}driver-{{ . }}{{ if eq . "tpu" }}-host{{ end }}{{- end -}}
{{- define "drakkar.nodevalues" -}}
{{- $d := index .root.Values.drivers .name -}}
{{- toJson (ternary $d.host $d (eq .name "tpu")) -}}
{{- end -}}

{{/* Every part that is on: component to port of its metrics. */}}
{{- define "drakkar.parts" -}}
{{- $parts := dict -}}
{{- if .Values.scheduler.enabled -}}{{- $_ := set $parts "scheduler" .Values.scheduler.metricsPort -}}{{- end -}}
{{- if .Values.controllers.enabled -}}{{- $_ := set $parts "controllers" .Values.controllers.metricsPort -}}{{- end -}}
{{- if .Values.drivers.tpu.enabled -}}{{- $_ := set $parts "driver-tpu" .Values.drivers.tpu.metricsPort -}}{{- end -}}
{{- if .Values.drivers.computedomain.enabled -}}{{- $_ := set $parts "driver-computedomain-controller" .Values.drivers.computedomain.controller.metricsPort -}}{{- end -}}
{{- range $name := fromJsonArray (include "drakkar.nodedrivers" .) -}}
{{- $d := fromJson (include "drakkar.nodevalues" (dict "root" $ "name" $name)) -}}
{{- $_ := set $parts (include "drakkar.nodepart" $name) $d.metricsPort -}}
{{- end -}}
{{- toJson $parts -}}
{{- end -}}
