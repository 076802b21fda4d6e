{{/* No program of KeelMQ uses the Kubernetes API. */}}
{{- define "keelmq.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "keelmq.name" . }}
automountServiceAccountToken: false
{{- end }}

{{- define "keelmq.monitoring" -}}
{{- if .Values.monitoring.enabled }}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "keelmq.name" . }}
  labels: {{- toYaml .Values.monitoring.labels | nindent 4 }}
spec:
  {{- regexReplaceAll "https://[^/\\s]+(/\\S*)?/docs/runbooks/" (.Files.Get "files/rules.yaml") (printf "https://%s/docs/runbooks/" .Values.monitoring.runbooks) | nindent 2 }}
{{- end }}
{{- end }}

{{- define "keelmq.extra" -}}
{{- range .Values.extraObjects }}
---
{{ if kindIs "string" . }}{{ tpl . $ }}{{ else }}{{ toYaml . }}{{ end }}
{{- end }}
{{- end }}
