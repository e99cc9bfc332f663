{{- define "mmdisagg.name" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name }}
{{- if gt (len $name) 40 }}
{{- fail (printf "%q is longer than 40 characters; choose another release name or set fullnameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- /* The values in JSON: the preset's, and over them the user's own. */}}
{{- define "mmdisagg.values" -}}
{{- $preset := dict }}
{{- with .Values.preset }}
{{- $preset = $.Files.Get (printf "presets/%s.yaml" .) | fromYaml }}
{{- if and $preset.model (eq "Path" (($.Values.model).source | default "Hub")) }}
{{- /* The weights lie elsewhere than on the Hub; the rest of the preset holds. */}}
{{- $_ := unset $preset.model "name" }}
{{- end }}
{{- end }}
{{- mergeOverwrite $preset (deepCopy .Values) | toJson }}
{{- end }}

{{- define "mmdisagg.topology" -}}
{{- (include "mmdisagg.values" . | fromJson).topology | default "E/P/D" }}
{{- end }}
