{{/* A StatefulSet for each group */}}
{{- define "keelmq.broker" -}}
{{- $of := .Values.broker }}
{{- if $of.enabled }}
{{- range $number, $group := $of.groups }}
---
{{- $name := printf "%s-%s" (include "keelmq.name" $) $group.name }}
{{- $labels := include "keelmq.selector" (list $ "broker" $group.name) }}
{{- $conf := include "keelmq.broker.conf" (list $ $group) }}
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
    - {name: broker, port: 10911, targetPort: broker}
    - {name: ha, port: 10912, targetPort: ha}
    - {name: http, port: 20911, targetPort: http}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
data:
  broker.conf: |
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
  # After a power cut any replica may be the only one that can become master.
  podManagementPolicy: Parallel
  # Time to rejoin the SyncStateSet before a rolling restart stops the next pod.
  minReadySeconds: 30
  selector:
    matchLabels: {{- $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
      annotations:
        checksum/config: {{ sha256sum $conf }}
        {{- include "keelmq.scraped" (list $ 20911) | nindent 8 }}
    spec:
      # A master hands over (4 s) and serves clients with the old route (40 s); the rest is for writing back the page cache.
      {{- include "keelmq.pod" (list $ 90 "volume") | nindent 6 }}
      {{- if gt (int $of.replicas) 1 }}
      {{- include "keelmq.spread" $labels | nindent 6 }}
      {{- end }}
      containers:
        - name: mqbroker
          {{- include "keelmq.image" (list $ $.Values.image) | nindent 10 }}
          command: [mqbroker]
          args:
            - -c
            - /etc/keelmq/conf/broker.conf
            - --set
            - brokerIP1=$(POD_IP)
            {{- include "keelmq.external.listen" (list $ 10921) | nindent 12 }}
            {{- include "keelmq.external.advertised" (list $ $number) | nindent 12 }}
            {{- if $.Values.security.enabled }}
            - --set
            - securityPath=/etc/keelmq/security
            {{- end }}
            {{- include "keelmq.bind" $ | nindent 12 }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            {{- include "keelmq.external.env" $ | nindent 12 }}
            {{- include "keelmq.external.brokerEnv" $ | nindent 12 }}
          ports:
            - {name: broker, containerPort: 10911}
            - {name: ha, containerPort: 10912}
            - {name: http, containerPort: 20911}
            {{- if $.Values.external.enabled }}
            - {name: external, containerPort: 10921}
            {{- end }}
          # ten minutes to start: recovery reads what was not flushed before a crash
          {{- include "keelmq.probes" (list $ 300 "/readyz") | nindent 10 }}
          resources: {{- toYaml $of.resources | nindent 12 }}
          {{- include "keelmq.confined" $ | nindent 10 }}
          volumeMounts:
            - {name: conf, mountPath: /etc/keelmq/conf, readOnly: true}
            - {name: data, mountPath: /var/lib/keelmq}
            - {name: tmp, mountPath: /tmp}
            {{- if $.Values.security.enabled }}
            - {name: security, mountPath: /etc/keelmq/security, readOnly: true}
            {{- end }}
        {{- if $.Values.analytics.enabled }}
        - {{- include "keelmq.telemetry" (list $ "/var/lib/keelmq/store") | nindent 10 }}
        {{- end }}
      volumes:
        - name: conf
          configMap: {name: {{ $name }}}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- include "keelmq.securityVolume" $ | nindent 8 }}
        {{- include "keelmq.analyticsVolume" $ | nindent 8 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {{- include "keelmq.claim" (list $of.storage $of.storageClassName "ReadWriteOnce") | nindent 8 }}
{{- if gt (int $of.replicas) 1 }}
---
# Node drains wait so that at most one replica of the group is away.
{{ include "keelmq.budget" (list $name $labels) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* (list $ group): the same for every replica; the controllers assign the ids, and .broker.meta on the volume keeps them. */}}
{{- define "keelmq.broker.conf" -}}
{{- $ := index . 0 }}{{ $group := index . 1 }}
{{- include "keelmq.properties" (list (include "keelmq.member" (list $ $group $.Values.broker.replicas) | fromYaml) (dict
  "listenPort" "10911"
  "haListenPort" "10912"
  "namesrvAddr" (include "keelmq.namesrvs" (list $ 9876 false))
  "storePathRootDir" "/var/lib/keelmq/store"
  "configStorePath" "/var/lib/keelmq/broker.properties"
) $.Values.broker.config ($group.config | default dict)) }}
{{- end }}

{{/* (list $ group replicas): keys of every broker of a group. An acknowledged message is on every member of the SyncStateSet, which
     has at least two members if there are three. */}}
{{- define "keelmq.member" -}}
{{- $ := index . 0 -}}
brokerClusterName: {{ $.Values.clusterName }}
brokerName: {{ (index . 1).name }}
brokerId: "-1"
enableControllerMode: "true"
controllerAddr: {{ include "keelmq.namesrvs" (list $ 9878 false) }}
allAckInSyncStateSet: "true"
{{- if gt (int (index . 2)) 2 }}
minInSyncReplicas: "2"
{{- end }}
{{- end }}
