{{/* Services for clients outside of the cluster. They lead to the listener `external` of the programs (docs/listeners.md). */}}
{{- define "keelmq.external" -}}
{{- $of := .Values.external }}
{{- if $of.enabled }}
{{- $name := include "keelmq.name" . }}
{{- $namesrv := printf "%s-namesrv" $name }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $namesrv }}-external
  labels: {{- include "keelmq.selector" (list . "namesrv") | nindent 4 }}
  {{- include "keelmq.external.annotations" (list . $namesrv) | nindent 2 }}
spec:
  type: {{ $of.type }}
  # Without a majority of controllers no name server is ready, and clients need routes all the same.
  publishNotReadyAddresses: true
  selector: {{- include "keelmq.selector" (list . "namesrv") | nindent 4 }}
  ports:
    - {name: external, port: 9876, targetPort: external{{ if eq $of.type "NodePort" }}, nodePort: {{ $of.nodePorts.namesrv }}{{ end }}}
{{- range $number, $group := .Values.broker.groups }}
{{- range $index := until (int $.Values.broker.replicas) }}
{{- $pod := printf "%s-%s-%d" $name $group.name $index }}
---
# One for each broker, because clients connect to the one that has their queue. Not ready addresses are published: a new master gets
# messages before its next probe, a slave that copies still serves consumers, and a broker that stops serves clients with the old route.
apiVersion: v1
kind: Service
metadata:
  name: {{ $pod }}-external
  labels: {{- include "keelmq.selector" (list $ "broker" $group.name) | nindent 4 }}
  {{- include "keelmq.external.annotations" (list $ $pod) | nindent 2 }}
spec:
  type: {{ $of.type }}
  {{- if eq $of.type "NodePort" }}
  # Only the node that the broker announces forwards the port, and the broker sees the client's address.
  externalTrafficPolicy: Local
  {{- end }}
  publishNotReadyAddresses: true
  selector: {statefulset.kubernetes.io/pod-name: {{ $pod }}}
  ports:
    - {name: external, port: 10921, targetPort: external{{ if eq $of.type "NodePort" }}, nodePort: {{ printf "%v%d%d0" $of.nodePorts.brokers $index $number }}{{ end }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* (list $ host): the name that ExternalDNS makes, and the user's annotations. */}}
{{- define "keelmq.external.annotations" -}}
{{- $of := (index . 0).Values.external }}
{{- $found := deepCopy $of.annotations }}
{{- if ne $of.type "NodePort" }}{{ $_ := set $found "external-dns.alpha.kubernetes.io/hostname" (printf "%s.%s" (index . 1) $of.domain) }}{{ end }}
{{- with $found }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* (list $ port): arguments that open the listener. */}}
{{- define "keelmq.external.listen" -}}
{{- if (index . 0).Values.external.enabled }}
- --set
- listeners=external://$(LISTEN_ADDRESS):{{ index . 1 }}
{{- end }}
{{- end }}

{{/* $: what `listeners` refers to */}}
{{- define "keelmq.external.env" -}}
{{- if .Values.external.enabled }}
- {name: LISTEN_ADDRESS, value: {{ ternary "'[::]'" "0.0.0.0" (ne .Values.ipFamilyPolicy "") }}}
{{- else if .Values.ipFamilyPolicy }}
- {name: LISTEN_ADDRESS, value: '[::]'}
{{- end }}
{{- end }}

{{/* (list $ number of the group): what clients outside connect to. The distance between two brokers of a group is 100, because old
     clients with the VIP channel use the port - 2, which must not be another broker's. */}}
{{- define "keelmq.external.advertised" -}}
{{- $of := (index . 0).Values.external }}
{{- if $of.enabled }}
- --set
{{- if eq $of.type "NodePort" }}
- advertisedListeners=external://$(HOST_IP):{{ $of.nodePorts.brokers }}$(POD_INDEX){{ index . 1 }}0
{{- else }}
- advertisedListeners=external://$(POD_NAME).$(DOMAIN):10921
{{- end }}
{{- end }}
{{- end }}

{{/* $: what `advertisedListeners` refers to */}}
{{- define "keelmq.external.brokerEnv" -}}
{{- $of := .Values.external }}
{{- if $of.enabled }}
{{- if eq $of.type "NodePort" }}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: POD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- else }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: DOMAIN, value: {{ $of.domain }}}
{{- end }}
{{- end }}
{{- end }}
