{{/* Containers of brokers. Clients dial the addresses of the routes, which are those of the pods, so no group needs a Service. */}}
{{- define "keelmq.container" -}}
{{- $of := .Values.container }}
{{- if $of.enabled }}
{{- $name := printf "%s-container" (include "keelmq.name" .) }}
{{- $labels := include "keelmq.selector" (list . "container") }}
{{- $files := include "keelmq.container.files" . }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- $labels | nindent 4 }}
  ports:
    - {name: container, port: 10811, targetPort: container}
    - {name: http, port: 20811, targetPort: http}
    {{- range $of.groups }}
    - {name: {{ .name }}, port: {{ .listenPort }}, targetPort: {{ .name }}}
    - {name: {{ include "keelmq.ha" .name }}, port: {{ add .listenPort 1 }}, targetPort: {{ include "keelmq.ha" .name }}}
    {{- end }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
data: {{- $files | nindent 2 }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  replicas: {{ $of.replicas }}
  serviceName: {{ $name }}
  # After a power cut any replica of a group may be the only one that can become master.
  podManagementPolicy: Parallel
  # Time to rejoin the SyncStateSets before a rolling restart stops the next pod.
  minReadySeconds: 30
  selector:
    matchLabels: {{- $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
      annotations:
        checksum/config: {{ sha256sum $files }}
        {{- include "keelmq.scraped" (list . 20811) | nindent 8 }}
    spec:
      # Masters hand over (4 s) and serve clients with the old route (40 s) at the same time. The rest is for writing back the page
      # cache of every store. SIGTERM starts that, so there is no preStop.
      {{- include "keelmq.pod" (list . 150 "volume") | nindent 6 }}
      {{- if gt (int $of.replicas) 1 }}
      {{- include "keelmq.spread" $labels | nindent 6 }}
      {{- end }}
      containers:
        - name: mqbrokercontainer
          {{- include "keelmq.image" (list . .Values.image) | nindent 10 }}
          command: [mqbrokercontainer]
          args:
            - -c
            - /etc/keelmq/conf/container.conf
            - --set
            - brokerContainerIP=$(POD_IP)
            {{- if .Values.security.enabled }}
            - --set
            - securityPath=/etc/keelmq/security
            - --set
            - usersPath=/var/lib/keelmq/users
            {{- end }}
            {{- include "keelmq.bind" . | nindent 12 }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
          ports:
            - {name: container, containerPort: 10811}
            - {name: http, containerPort: 20811}
            {{- range $of.groups }}
            - {name: {{ .name }}, containerPort: {{ .listenPort }}}
            - {name: {{ include "keelmq.ha" .name }}, containerPort: {{ add .listenPort 1 }}}
            {{- end }}
          # All three ask the container, never one broker: a restart would take the others along.
          {{- include "keelmq.probes" (list . 300 "/readyz/all") | nindent 10 }}
          resources: {{- toYaml $of.resources | nindent 12 }}
          {{- include "keelmq.confined" . | nindent 10 }}
          volumeMounts:
            - {name: conf, mountPath: /etc/keelmq/conf, readOnly: true}
            - {name: data, mountPath: /var/lib/keelmq}
            {{- range $of.groups }}
            - {name: {{ .name }}, mountPath: /var/lib/keelmq/{{ .name }}}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
            {{- if .Values.security.enabled }}
            - {name: security, mountPath: /etc/keelmq/security, readOnly: true}
            {{- end }}
      volumes:
        - name: conf
          configMap: {name: {{ $name }}}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- include "keelmq.securityVolume" . | nindent 8 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {{- include "keelmq.claim" (list $of.storage $of.storageClassName "ReadWriteOnce") | nindent 8 }}
    {{- range $of.groups }}
    - metadata: {name: {{ .name }}}
      spec: {{- include "keelmq.claim" (list $of.brokerStorage $of.storageClassName "ReadWriteOnce") | nindent 8 }}
    {{- end }}
---
# One node at a time: each pod that is away takes a replica of every group along.
{{ include "keelmq.budget" (list $name $labels) }}
{{- end }}
{{- end }}

{{/* The port of replication: broker-a has ha-a. */}}
{{- define "keelmq.ha" -}}
ha-{{ trimPrefix "broker-" . }}
{{- end }}

{{- define "keelmq.container.files" -}}
{{- $of := .Values.container }}
{{- $paths := list }}
{{- range $group := $of.groups }}
{{- $paths = append $paths (printf "/etc/keelmq/conf/%s.conf" $group.name) }}
{{ $group.name }}.conf: |
  {{- include "keelmq.properties" (list (include "keelmq.member" (list $ $group $of.replicas) | fromYaml) (dict
    "listenPort" (toString $group.listenPort)
    "slaveReadEnable" "true"
    "storePathRootDir" (printf "/var/lib/keelmq/%s/store" $group.name)
    "configStorePath" (printf "/var/lib/keelmq/%s/broker.properties" $group.name)
  ) $of.brokerConfig ($group.config | default dict)) | nindent 2 }}
{{- end }}
container.conf: |
  {{- include "keelmq.properties" (list (dict
    "listenPort" "10811"
    "namesrvAddr" (include "keelmq.namesrvs" (list . 9876 false))
    "brokerConfigPaths" (join ":" $paths)
    "containerStatePath" "/var/lib/keelmq/brokers.json"
    "configStorePath" "/var/lib/keelmq/container.properties"
  ) $of.config) | nindent 2 }}
{{- end }}
