# The role of Karve's controller, the EKS Pod Identity association that gives it to its service account, and the charts. The cluster has Karpenter and the
# add-on eks-pod-identity-agent already. The helm provider has to be configured for the cluster. pool.tf has what launches machines.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.34"
    }
    helm = {
      source  = "hashicorp/helm"
      version = ">= 3.0"
    }
    kubectl = {
      source  = "alekc/kubectl"
      version = ">= 2.0"
    }
  }
}

locals {
  namespace       = "karve-system"
  service_account = "karve"
}

resource "aws_iam_role" "karve" {
  name               = "karve-${var.cluster_name}"
  assume_role_policy = file("${path.module}/../iam/pod-identity-trust.json")
}

resource "aws_iam_role_policy" "karve" {
  name   = "karve"
  role   = aws_iam_role.karve.id
  policy = file("${path.module}/../iam/policy.json")
}

resource "aws_eks_pod_identity_association" "karve" {
  cluster_name    = var.cluster_name
  namespace       = local.namespace
  service_account = local.service_account
  role_arn        = aws_iam_role.karve.arn
}

resource "helm_release" "karve_crd" {
  name             = "karve-crd"
  chart            = "${path.module}/../../charts/karve-crd"
  namespace        = local.namespace
  create_namespace = true
}

resource "helm_release" "karve" {
  name      = "karve"
  chart     = "${path.module}/../../charts/karve"
  namespace = local.namespace
  skip_crds = true

  values = [yamlencode({
    serviceAccount = { name = local.service_account }
    controller     = { image = { repository = var.controller_image } }
    node           = { image = { repository = var.node_image } }
  })]

  # A pod that starts before gets no credentials.
  depends_on = [helm_release.karve_crd, aws_eks_pod_identity_association.karve, aws_iam_role_policy.karve]
}
