{{/* Name servers with controllers. The names of the pods are the raft members' addresses. */}}
{{- define "keelmq.namesrv" -}}
{{- $name := printf "%s-namesrv" (include "keelmq.name" .) }}
{{- $labels := include "keelmq.selector" (list . "namesrv") }}
{{- $of := .Values.namesrv }}
{{- $conf := include "keelmq.namesrv.conf" . }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  clusterIP: None
  # A controller is ready when it knows a leader, and members must find each other to elect one.
  publishNotReadyAddresses: true
  selector: {{- $labels | nindent 4 }}
  ports:
    - {name: namesrv, port: 9876, targetPort: namesrv}
    - {name: controller, port: 9878, targetPort: controller}
    - {name: raft, port: 10878, targetPort: raft}
    - {name: http, port: 19876, targetPort: http}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
data:
  namesrv.conf: |
    {{- $conf | nindent 4 }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  replicas: {{ $of.replicas }}
  serviceName: {{ $name }}
  # OrderedReady would wait for ever: the first pod is ready only with a majority.
  podManagementPolicy: Parallel
  # A rolling restart waits this long after "ready": the next pod must not stop while this one catches up.
  minReadySeconds: 10
  selector:
    matchLabels: {{- $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
      annotations:
        checksum/config: {{ sha256sum $conf }}
        {{- include "keelmq.scraped" (list . 19876) | nindent 8 }}
    spec:
      {{- include "keelmq.pod" (list . 30 "volume") | nindent 6 }}
      {{- if gt (int $of.replicas) 1 }}
      {{- include "keelmq.spread" $labels | nindent 6 }}
      {{- end }}
      containers:
        - name: mqnamesrv
          {{- include "keelmq.image" (list . .Values.image) | nindent 10 }}
          command: [mqnamesrv]
          args:
            - -c
            - /etc/keelmq/conf/namesrv.conf
            - --set
            - controllerDLegerSelfId=n$(POD_INDEX)
            {{- include "keelmq.external.listen" (list . 9976) | nindent 12 }}
            {{- if .Values.security.enabled }}
            - --set
            - securityPath=/etc/keelmq/security
            - --set
            - usersPath=/var/lib/keelmq/users
            {{- end }}
            {{- if .Values.analytics.enabled }}
            - --set
            - analyticsOutputDir=/data/output
            {{- end }}
            {{- include "keelmq.bind" . | nindent 12 }}
          env:
            - name: POD_INDEX
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
            {{- include "keelmq.external.env" . | nindent 12 }}
          ports:
            - {name: namesrv, containerPort: 9876}
            - {name: controller, containerPort: 9878}
            - {name: raft, containerPort: 10878}
            - {name: http, containerPort: 19876}
            {{- if .Values.external.enabled }}
            - {name: external, containerPort: 9976}
            {{- end }}
          {{- include "keelmq.probes" (list . 60 "/readyz") | nindent 10 }}
          resources: {{- toYaml $of.resources | nindent 12 }}
          {{- include "keelmq.confined" . | nindent 10 }}
          volumeMounts:
            - {name: conf, mountPath: /etc/keelmq/conf, readOnly: true}
            - {name: secret, mountPath: /etc/keelmq/secret, readOnly: true}
            - {name: data, mountPath: /var/lib/keelmq}
            - {name: tmp, mountPath: /tmp}
            {{- if .Values.security.enabled }}
            - {name: security, mountPath: /etc/keelmq/security, readOnly: true}
            {{- end }}
            {{- if .Values.analytics.enabled }}
            - {name: analytics, mountPath: /data, readOnly: true}
            {{- end }}
        {{- if .Values.analytics.enabled }}
        - {{- include "keelmq.telemetry" (list . "/var/lib/keelmq/controller") | nindent 10 }}
        {{- end }}
      volumes:
        - name: conf
          configMap: {name: {{ $name }}}
        - name: secret
          secret: {secretName: {{ include "keelmq.raftKeySecret" . }}, defaultMode: 0440}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- include "keelmq.securityVolume" . | nindent 8 }}
        {{- include "keelmq.analyticsVolume" . | nindent 8 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {{- include "keelmq.claim" (list $of.storage $of.storageClassName "ReadWriteOnce") | nindent 8 }}
{{- if gt (int $of.replicas) 1 }}
---
# Node drains wait so that at most one controller is away.
{{ include "keelmq.budget" (list $name $labels) }}
{{- end }}
{{- end }}

{{- define "keelmq.namesrv.conf" -}}
{{- include "keelmq.properties" (list (dict
  "listenPort" "9876"
  "enableControllerInNamesrv" "true"
  "controllerDLegerGroup" "keelmq"
  "controllerDLegerPeers" (include "keelmq.namesrvs" (list . 9878 true))
  "controllerRaftSecretFile" "/etc/keelmq/secret/raft.key"
  "controllerStorePath" "/var/lib/keelmq/controller"
  "kvConfigPath" "/var/lib/keelmq/kvConfig.json"
  "configStorePath" "/var/lib/keelmq/namesrv.properties"
) .Values.namesrv.config) }}
{{- end }}

{{- define "keelmq.raftKeySecret" -}}
{{ .Values.raftKeySecret | default (printf "%s-raft-key" (include "keelmq.name" .)) }}
{{- end }}

{{/* The key is created once: an upgrade finds it, and so does a second install after an uninstall. */}}
{{- define "keelmq.raftKey" -}}
{{- if not .Values.raftKeySecret }}
{{- $name := include "keelmq.raftKeySecret" . }}
{{- $known := lookup "v1" "Secret" .Release.Namespace $name }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}
  annotations: {helm.sh/resource-policy: keep}
data:
  {{- if $known }}
  raft.key: {{ get $known.data "raft.key" }}
  {{- else }}
  raft.key: {{ randAlphaNum 43 | b64enc }}
  {{- end }}
{{- end }}
{{- end }}
