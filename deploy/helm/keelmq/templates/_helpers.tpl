{{/* The beginning of every name: of the release, with the chart's name in it. */}}
{{- define "keelmq.name" -}}
{{- if contains "keelmq" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-keelmq" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* (list $ component): labels that never change, because selectors have them. */}}
{{- define "keelmq.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: keelmq
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- with slice . 2 }}
keelmq/group: {{ index . 0 }}
{{- end }}
{{- end }}

{{/* (list $ image) */}}
{{- define "keelmq.image" -}}
{{- $ := index . 0 }}{{ $image := index . 1 -}}
image: {{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* (list $ port prefix): the addresses of all name servers at this port, which are the controllers' as well. */}}
{{- define "keelmq.namesrvs" -}}
{{- $ := index . 0 }}{{ $port := index . 1 }}{{ $member := index . 2 }}
{{- $name := printf "%s-namesrv" (include "keelmq.name" $) }}
{{- range $index := until (int $.Values.namesrv.replicas) }}
{{- if $index }};{{ end }}{{ if $member }}n{{ $index }}-{{ end }}{{ $name }}-{{ $index }}.{{ $name }}:{{ $port }}
{{- end }}
{{- end }}

{{/* (list file maps...): later maps win; null removes a key. */}}
{{- define "keelmq.properties" -}}
{{- $merged := dict }}
{{- range . }}{{ range $key, $value := . }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $merged $key }}
{{- else if or (kindIs "map" $value) (kindIs "slice" $value) }}{{ fail (printf "config: %s is a %s; write the value as one text" $key (kindOf $value)) }}
{{- else if kindIs "float64" $value }}{{ $_ := set $merged $key (toJson $value) }}
{{- else }}{{ $_ := set $merged $key (toString $value) }}{{ end }}
{{- end }}{{ end }}
{{- range $key := keys $merged | sortAlpha }}
{{ $key }}={{ get $merged $key }}
{{- end }}
{{- end }}

{{/* Every pod: no rights, no API, no links. (list $ grace seconds, owns a volume) */}}
{{- define "keelmq.pod" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ include "keelmq.name" $ }}
automountServiceAccountToken: false
# Kubernetes would set KEELMQ_..._SERVICE_HOST and similar variables, and KEELMQ_* are configuration keys.
enableServiceLinks: false
{{- with index . 1 }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- with $.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  {{- if ne (index . 2) "" }}
  fsGroup: 10001
  {{- end }}
  {{- if eq (index . 2) "volume" }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* $: the argument by which a program listens on IPv6, too */}}
{{- define "keelmq.bind" -}}
{{- if .Values.ipFamilyPolicy }}
- --set
- "bindAddress=::"
{{- end }}
{{- end }}

{{- define "keelmq.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* (list selector labels): replicas on different nodes and in all zones */}}
{{- define "keelmq.spread" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- . | nindent 12 }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- . | nindent 8 }}
{{- end }}

{{/* (list $ port): for Prometheus without an operator */}}
{{- define "keelmq.scraped" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ index . 1 | quote }}
prometheus.io/path: /metrics
{{- if (index . 0).Values.security.enabled }}
prometheus.io/scheme: https
{{- end }}
{{- end }}

{{/* (list $ failures until the start has failed, path of readiness) */}}
{{- define "keelmq.probes" -}}
{{- $scheme := ternary ", scheme: HTTPS" "" (index . 0).Values.security.enabled -}}
startupProbe:
  httpGet: {path: /livez, port: http{{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ index . 1 }}
livenessProbe:
  httpGet: {path: /livez, port: http{{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: {{ index . 2 }}, port: http{{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* (list name size class mode) */}}
{{- define "keelmq.claim" -}}
accessModes: [{{ index . 2 }}]
{{- with index . 1 }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ index . 0 }}}}
{{- end }}

{{/* What servers mount if security is enabled. The files are root's, and fsGroup lets the program read them. */}}
{{- define "keelmq.securityVolume" -}}
{{- if .Values.security.enabled }}
- name: security
  secret: {secretName: {{ .Values.security.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* What the pods with telemetry mount if analytics is enabled */}}
{{- define "keelmq.analyticsVolume" -}}
{{- if .Values.analytics.enabled }}
- name: analytics
  persistentVolumeClaim: {claimName: {{ include "keelmq.name" . }}-analytics}
{{- end }}
{{- end }}

{{/* (list name selector) */}}
{{- define "keelmq.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 0 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- index . 1 | nindent 6 }}
{{- end }}

{{/* The container that copies telemetry. (list $ source) */}}
{{- define "keelmq.telemetry" -}}
{{- $ := index . 0 -}}
name: telemetry
{{ include "keelmq.image" (list $ $.Values.analytics.image) }}
command: [keelmq]
args: [analytics, upload, --input, {{ index . 1 }}/telemetry, --output, /data/telemetry/$(POD_NAME)/telemetry, --every, "2"]
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
resources:
  requests: {cpu: 20m, memory: 64Mi}
  limits: {memory: 256Mi}
{{ include "keelmq.confined" $ }}
volumeMounts:
  - {name: data, mountPath: /var/lib/keelmq, readOnly: true}
  - {name: analytics, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* (list base patch): {"result": merged}, as the comment at `overrides` in values.yaml says. */}}
{{- define "keelmq.merge" -}}
{{- $base := index . 0 }}{{ $patch := index . 1 }}
{{- $result := $patch }}
{{- if and (kindIs "map" $base) (kindIs "map" $patch) }}
  {{- $result = deepCopy $base }}
  {{- range $key, $value := $patch }}
    {{- if and (kindIs "map" $value) (eq (toString (get $value "$patch")) "delete") }}{{ $_ := unset $result $key }}
    {{- else if hasKey $result $key }}{{ $_ := set $result $key (get (include "keelmq.merge" (list (get $result $key) $value) | fromJson) "result") }}
    {{- else }}{{ $_ := set $result $key $value }}{{ end }}
  {{- end }}
{{- else if and (kindIs "slice" $base) (kindIs "slice" $patch) (include "keelmq.named" $base) (include "keelmq.named" $patch) }}
  {{- $result = list }}
  {{- range $old := $base }}
    {{- $item := $old }}{{ $deleted := false }}
    {{- range $new := $patch }}
      {{- if eq $old.name $new.name }}
        {{- if eq (toString (get $new "$patch")) "delete" }}{{ $deleted = true }}
        {{- else }}{{ $item = get (include "keelmq.merge" (list $item $new) | fromJson) "result" }}{{ end }}
      {{- end }}
    {{- end }}
    {{- if not $deleted }}{{ $result = append $result $item }}{{ end }}
  {{- end }}
  {{- range $new := $patch }}
    {{- $known := false }}
    {{- range $old := $base }}{{ if eq $old.name $new.name }}{{ $known = true }}{{ end }}{{ end }}
    {{- if not $known }}{{ $result = append $result $new }}{{ end }}
  {{- end }}
{{- end }}
{{- dict "result" $result | toJson }}
{{- end }}

{{/* "yes" if the list has elements, and all of them have a name */}}
{{- define "keelmq.named" -}}
{{- $named := gt (len .) 0 }}
{{- range . }}{{ if not (and (kindIs "map" .) (hasKey . "name")) }}{{ $named = false }}{{ end }}{{ end }}
{{- if $named }}yes{{ end }}
{{- end }}
