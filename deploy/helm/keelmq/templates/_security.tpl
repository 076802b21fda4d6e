{{/* Who may connect. Clients: pods of any namespace with the label keelmq/client=true. The kubelet's probes come from the node, which
     network plugins let through. */}}
{{- define "keelmq.security" -}}
{{- if .Values.security.enabled }}
{{- $name := include "keelmq.name" . }}
{{- $release := printf "{app.kubernetes.io/name: keelmq, app.kubernetes.io/instance: %s}" .Release.Name }}
{{- $tools := include "keelmq.selector" (list . "tools") }}
{{- $ports := list (dict "name" "namesrv" "clients" (list "namesrv") "release" (list "namesrv" "controller") "peers" (list "raft")) }}
{{- if .Values.broker.enabled }}
{{- $ports = append $ports (dict "name" "broker" "clients" (list "broker") "release" (list "broker") "peers" (list "ha")) }}
{{- end }}
{{- if .Values.container.enabled }}
{{- $groups := list }}{{ $replication := list }}
{{- range .Values.container.groups }}
{{- $groups = append $groups .name }}{{ $replication = append $replication (include "keelmq.ha" .name) }}
{{- end }}
{{- $ports = append $ports (dict "name" "container" "clients" $groups "release" $groups "peers" $replication "tools" (list "container")) }}
{{- end }}
{{- range $ports }}
{{- $labels := include "keelmq.selector" (list $ .name) }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}-{{ .name }}
spec:
  podSelector:
    matchLabels: {{- $labels | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - from:  # all programs of the release
        - podSelector: {matchLabels: {{ $release }}}
      ports: {{- range append .release "http" }}{{ printf "\n- {port: %s}" . | indent 8 }}{{ end }}
    - from:
        - podSelector:
            matchLabels: {{- $labels | nindent 14 }}
      ports: {{- range .peers }}{{ printf "\n- {port: %s}" . | indent 8 }}{{ end }}
    {{- with .tools }}
    - from:
        - podSelector:
            matchLabels: {{- $tools | nindent 14 }}
      ports: {{- range . }}{{ printf "\n- {port: %s}" . | indent 8 }}{{ end }}
    {{- end }}
    - from:
        - namespaceSelector: {}
          podSelector: {matchLabels: {keelmq/client: "true"}}
      ports: {{- range .clients }}{{ printf "\n- {port: %s}" . | indent 8 }}{{ end }}
    - from:
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ $.Values.security.monitoringNamespace }}}}
      ports:
        - {port: http}
    {{- if $.Values.external.enabled }}
    - ports:
        - {port: external}
    {{- end }}
---
{{- end }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}-tools
spec:
  podSelector:
    matchLabels: {{- $tools | nindent 6 }}
  policyTypes: [Ingress]
  ingress: []
---
# A pod with the administrator's credentials. There is none until you scale it.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}-tools
  labels: {{- $tools | nindent 4 }}
spec:
  replicas: 0
  selector:
    matchLabels: {{- $tools | nindent 6 }}
  template:
    metadata:
      labels: {{- $tools | nindent 8 }}
    spec:
      {{- include "keelmq.pod" (list . 1 "read") | nindent 6 }}
      containers:
        - name: tools
          {{- include "keelmq.image" (list . .Values.image) | nindent 10 }}
          command: [sleep, infinity]
          env:
            - {name: KEELMQ_CREDENTIALS, value: /etc/keelmq/admin/credentials.yml}
            - name: NAMESRV_ADDR
              value: {{ include "keelmq.namesrvs" (list . 9876 false) }}
          resources:
            requests: {cpu: 10m, memory: 64Mi}
            limits: {memory: 512Mi}
          {{- include "keelmq.confined" . | nindent 10 }}
          volumeMounts:
            - {name: admin, mountPath: /etc/keelmq/admin, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: admin
          secret: {secretName: {{ .Values.security.adminSecretName }}, defaultMode: 0440}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- end }}
