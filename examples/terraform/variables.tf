variable "cluster_name" {
  description = "Name of the EKS cluster."
  type        = string
}

variable "controller_image" {
  description = "Repository of the controller's image, with the registry's host."
  type        = string
}

variable "node_image" {
  description = "Repository of the agent's image, with the registry's host."
  type        = string
}
