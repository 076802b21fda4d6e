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
{{- if .Values.monitoring.podMonitor }}
---
# What Prometheus scrapes: every pod that has a port `http`.
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "keelmq.name" . }}
  labels: {{- toYaml .Values.monitoring.labels | nindent 4 }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: keelmq
      app.kubernetes.io/instance: {{ .Release.Name }}
  podMetricsEndpoints:
    - port: http
      path: /metrics
      interval: 15s
      {{- if .Values.security.enabled }}
      # Brokers register pod addresses, which are not in the certificate.
      scheme: https
      tlsConfig: {insecureSkipVerify: true}
      {{- end }}
      relabelings:
        - {targetLabel: job, replacement: keelmq}  # the alerts expect this name
{{- end }}
{{- end }}
{{- end }}

{{- define "keelmq.extra" -}}
{{- range .Values.extraObjects }}
---
{{ if kindIs "string" . }}{{ tpl . $ }}{{ else }}{{ toYaml . }}{{ end }}
{{- end }}
{{- end }}
