{{/* Proxies keep nothing: any number of them serves any client. */}}
{{- define "keelmq.proxy" -}}
{{- $of := .Values.proxy }}
{{- if $of.enabled }}
{{- $name := printf "%s-proxy" (include "keelmq.name" .) }}
{{- $labels := include "keelmq.selector" (list . "proxy") }}
{{- $conf := include "keelmq.properties" (list (dict
  "namesrvAddr" (include "keelmq.namesrvs" (list . 9876 false))
  "grpcServerPort" "8081"
  "proxyAddress" $name
  "allowOpenNetwork" "true"
) $of.config) }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  {{- if ne $of.serviceType "ClusterIP" }}
  type: {{ $of.serviceType }}
  {{- end }}
  selector: {{- $labels | nindent 4 }}
  ports:
    - {name: grpc, port: 8081, targetPort: grpc, appProtocol: kubernetes.io/h2c}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
data:
  proxy.conf: |
    {{- $conf | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  # No replicas: the autoscaler sets them.
  minReadySeconds: 5
  strategy:
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels: {{- $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
      annotations:
        checksum/config: {{ sha256sum $conf }}
        {{- include "keelmq.scraped" (list . 18081) | nindent 8 }}
    spec:
      {{- include "keelmq.pod" (list . 30 "") | nindent 6 }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- $labels | nindent 14 }}
        {{- end }}
      containers:
        - name: mqproxy
          {{- include "keelmq.image" (list . .Values.image) | nindent 10 }}
          command: [mqproxy]
          args:
            - -c
            - /etc/keelmq/conf/proxy.conf
            {{- include "keelmq.bind" . | nindent 12 }}
          ports:
            - {name: grpc, containerPort: 8081}
            - {name: http, containerPort: 18081}
          {{- include "keelmq.probes" (list . 60 "/readyz") | nindent 10 }}
          lifecycle:
            # No new connections come before the port closes: the Service has dropped the pod by then.
            preStop: {exec: {command: [sleep, "5"]}}
          resources: {{- toYaml $of.resources | nindent 12 }}
          {{- include "keelmq.confined" . | nindent 10 }}
          volumeMounts:
            - {name: conf, mountPath: /etc/keelmq/conf, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: conf
          configMap: {name: {{ $name }}}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
---
# Connections of gRPC stay where they are: a new pod gets those of clients that connect, or whose pod has gone.
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}
  minReplicas: {{ $of.minReplicas }}
  maxReplicas: {{ $of.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: 100}
  behavior:
    # Clients of a pod that goes must connect again.
    scaleDown:
      stabilizationWindowSeconds: 600
      policies: [{type: Pods, value: 1, periodSeconds: 120}]
---
# Node drains wait so that at most one proxy is away.
{{ include "keelmq.budget" (list $name $labels) }}
{{- end }}
{{- end }}
