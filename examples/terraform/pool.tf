# What Karve needs to launch machines with GPUs: Karpenter's EC2NodeClass, the GPUNodeClass and the NodePool of ../. Remove this file if your own are elsewhere.
# Afterwards, `kubectl apply -f ../deployment.yaml` starts pods that share GPUs. The kubectl provider has to be configured for the cluster.

# Its role and tags have the names that Karpenter's getting started guide gives those of a cluster.
resource "kubectl_manifest" "nodeclass" {
  yaml_body = replace(
    replace(file("${path.module}/../nodeclass.yaml"), "KarpenterNodeRole-karve", "KarpenterNodeRole-${var.cluster_name}"),
    "karpenter.sh/discovery: karve", "karpenter.sh/discovery: ${var.cluster_name}",
  )
}

resource "kubectl_manifest" "gpunodeclass" {
  yaml_body  = file("${path.module}/../gpunodeclass.yaml")
  depends_on = [helm_release.karve, kubectl_manifest.nodeclass]
}

resource "kubectl_manifest" "nodepool" {
  yaml_body  = file("${path.module}/../nodepool.yaml")
  depends_on = [kubectl_manifest.gpunodeclass]
}
