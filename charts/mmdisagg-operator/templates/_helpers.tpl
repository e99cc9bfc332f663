{{- define "mmdisagg-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "mmdisagg-operator.fullname" -}}
{{- $name := include "mmdisagg-operator.name" . }}
{{- $both := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $both | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Unique in the cluster: releases of one name may live in several namespaces. */}}
{{- define "mmdisagg-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "mmdisagg-operator.fullname" .) }}
{{- end }}

{{- define "mmdisagg-operator.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "mmdisagg-operator.fullname" .) "default" }}
{{- .Values.serviceAccount.name | default $own }}
{{- end }}

{{- define "mmdisagg-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mmdisagg-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mmdisagg-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mmdisagg-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Takes (dict "root" $ "image" .Values.image); empty where there is no repository. */}}
{{- define "mmdisagg-operator.image" -}}
{{- with .image.repository }}
{{- $registry := $.root.Values.registry | trimSuffix "/" }}
{{- $tag := printf ":%s" ($.image.tag | default $.root.Chart.AppVersion) }}
{{- $version := $.image.digest | empty | ternary $tag (printf "@%s" $.image.digest) }}
{{- $registry | empty | ternary . (printf "%s/%s" $registry .) }}{{ $version }}
{{- end }}
{{- end }}

{{- /* The least that serves a namespace's resources. */}}
{{- define "mmdisagg-operator.rules" -}}
- apiGroups: [mmdisagg.io]
  resources: [multimodaldisaggdeployments]
  verbs: [get, list, watch]
- apiGroups: [mmdisagg.io]
  resources: [multimodaldisaggdeployments/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# The stage token is made once; secrets are never listed, changed or deleted.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
# Nobody may grant what they lack themselves: this is the router's Role.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end }}
