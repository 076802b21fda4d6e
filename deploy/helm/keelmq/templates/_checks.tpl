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
{{- if and $values.proxy.enabled $values.security.enabled }}{{ fail "proxy.enabled: the chart's proxies have no users and no TLS; set proxy.enabled=false, or security.enabled=false" }}{{ end }}
{{- end }}
