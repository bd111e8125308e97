-- Health of GPUNodeClasses and GPUImageRollouts for Argo CD: resource.customizations.health.karve.sh_GPUNodeClass and …_GPUImageRollout in the ConfigMap argocd-cm.
local health = { status = "Progressing", message = "Karve has not seen it yet" }
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
for _, condition in ipairs(status.conditions) do
  if condition.type == "Degraded" and condition.status == "True" then
    return { status = "Degraded", message = condition.message }
  end
  if condition.type == "Accepted" and condition.status == "False" then
    return { status = "Degraded", message = condition.message }
  end
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    end
  end
end
return health
