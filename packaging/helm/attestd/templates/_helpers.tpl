{{- define "attestd.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "attestd.selector" -}}
app.kubernetes.io/name: attestd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "attestd.labels" -}}
{{ include "attestd.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "attestd.scheme" -}}
{{ if .Values.tls.secret }}https{{ else }}http{{ end }}
{{- end }}

{{/* The configuration file: the values' config, and the settings that the chart decides. */}}
{{- define "attestd.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $server := dict "listen" "0.0.0.0:8080" }}
{{- if .Values.tls.secret }}
{{- $_ := set $server "tls" (dict "cert" "/run/secrets/tls/tls.crt" "key" "/run/secrets/tls/tls.key") }}
{{- else }}
{{- $_ := set $server "allow_plain_http" true }}
{{- end }}
{{- $decided := dict "server" $server "admin" (dict "socket" "/var/lib/attestd/admin.sock") "metrics" (dict "listen" (ternary "0.0.0.0:9464" "" .Values.metrics.enabled)) }}
{{- toYaml (mergeOverwrite $config $decided) }}
{{- end }}

{{- define "attestd.check" -}}
{{- if not .Values.image.tag }}{{ fail "set image.tag to the version of the image" }}{{ end }}
{{- if not .Values.config.hsm.uri }}{{ fail "set config.hsm.uri to the key's RFC 7512 URI" }}{{ end }}
{{- if not .Values.config.journal.origin }}{{ fail "set config.journal.origin to the name of the log, such as payments.example.com/attestd" }}{{ end }}
{{- if not .Values.pin.secret }}{{ fail "set pin.secret to a Secret with the token's PIN as pin" }}{{ end }}
{{- if gt (int .Values.replicas) 1 }}
{{- if not .Values.config.store.url }}{{ fail "replicas above 1 need a PostgreSQL: set config.store.url" }}{{ end }}
{{- if not .Values.logKey.secret }}{{ fail "replicas above 1 need one log key for all: set logKey.secret" }}{{ end }}
{{- end }}
{{- end }}
