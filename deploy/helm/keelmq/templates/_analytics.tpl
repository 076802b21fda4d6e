{{/* On the embedded engine. The StatefulSets have the containers that copy telemetry. */}}
{{- define "keelmq.analytics" -}}
{{- $of := .Values.analytics }}
{{- if $of.enabled }}
{{- $name := printf "%s-analytics" (include "keelmq.name" .) }}
{{- $hourly := include "keelmq.selector" (list . "analytics") }}
{{- $stream := include "keelmq.selector" (list . "analytics-stream") }}
# Every node writes its telemetry here, and the job its tables.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ $name }}
spec: {{- include "keelmq.claim" (list $of.storage $of.storageClassName "ReadWriteMany") | nindent 2 }}
---
# Five minutes after each full hour, when the files of the hour before are closed. Computes only what is new.
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ $name }}
  labels: {{- $hourly | nindent 4 }}
spec:
  schedule: "5 * * * *"
  timeZone: Etc/UTC
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  successfulJobsHistoryLimit: 2
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 3000
      template:
        metadata:
          labels: {{- $hourly | nindent 12 }}
        spec:
          restartPolicy: Never
          {{- include "keelmq.analytics.pod" (list . 0 "run" (list "--every-minutes" "60") "1Gi") | nindent 10 }}
---
# One pod: two would write the same tables. After a restart it goes on from its checkpoint.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}-stream
  labels: {{- $stream | nindent 4 }}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector:
    matchLabels: {{- $stream | nindent 6 }}
  template:
    metadata:
      labels: {{- $stream | nindent 8 }}
    spec:
      {{- include "keelmq.analytics.pod" (list . 60 "stream" list "2Gi") | nindent 6 }}
{{- end }}
{{- end }}

{{/* (list $ grace command arguments memory) */}}
{{- define "keelmq.analytics.pod" -}}
{{- $ := index . 0 -}}
{{ include "keelmq.pod" (list $ (index . 1) "volume") }}
containers:
  - name: analytics
    {{- include "keelmq.image" (list $ $.Values.analytics.image) | nindent 4 }}
    command: [keelmq]
    args: {{ concat (list "analytics" (index . 2) "--input" "/data/telemetry" "--output" "/data/output") (index . 3) | toJson }}
    resources:
      requests: {cpu: "1", memory: {{ index . 4 }}}
      limits: {memory: 4Gi}
    {{- include "keelmq.confined" $ | nindent 4 }}
    volumeMounts:
      - {name: analytics, mountPath: /data}
      - {name: tmp, mountPath: /tmp}
volumes:
  {{- include "keelmq.analyticsVolume" $ | nindent 2 }}
  - name: tmp
    emptyDir: {sizeLimit: 20Gi}
{{- end }}
