{{/* What the schema cannot see. */}}
{{- define "keelmq.checks" -}}
{{- $values := .Values }}
{{- if eq (int $values.namesrv.replicas) 2 }}{{ fail "namesrv.replicas: 2 controllers tolerate no loss; set 1, or 3 or more" }}{{ end }}
{{- $places := dict }}
{{- range $kind := list "broker" "container" }}{{ $of := get $values $kind }}{{ if $of.enabled }}
  {{- range $of.groups }}
    {{- if hasKey $places .name }}{{ fail (printf "%s.groups: the group %s is in %s.groups already; give it another name" $kind .name (get $places .name)) }}{{ end }}
    {{- $_ := set $places .name $kind }}
  {{- end }}
{{- end }}{{ end }}
{{- if not $places }}{{ fail "no brokers: set broker.enabled=true or container.enabled=true" }}{{ end }}
{{- with $values.external }}{{ if .enabled }}
  {{- if $values.container.enabled }}{{ fail "external.enabled: the chart gives containers no listeners, because the address of each of their brokers would differ from pod to pod; set container.enabled=false, or external.enabled=false" }}{{ end }}
  {{- if and (ne .type "NodePort") (not .domain) }}{{ fail (printf "external.domain: brokers announce POD.DOMAIN with external.type=%s; set the domain of these names" .type) }}{{ end }}
  {{- if and (eq .type "NodePort") (or (gt (int $values.broker.replicas) 10) (gt (len $values.broker.groups) 10)) }}{{ fail "external.type: node ports are for at most 10 groups of at most 10 brokers; use LoadBalancer" }}{{ end }}
{{- end }}{{ end }}
{{- if and $values.proxy.enabled $values.security.enabled }}{{ fail "proxy.enabled: the chart's proxies have no users and no TLS; set proxy.enabled=false, or security.enabled=false" }}{{ end }}
{{- end }}
