# A machine image with neuron-pd on the Neuron DLAMI.
#   git archive --format=tar.gz --output=/tmp/neuron-pd.tar.gz HEAD
#   packer init launch/image/neuron-pd.pkr.hcl
#   packer build -var region=us-east-2 -var subnet_id=subnet-… launch/image/neuron-pd.pkr.hcl
packer {
  required_version = ">= 1.7.0"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2.8"
    }
  }
}

variable "region" {
  type = string
}

variable "subnet_id" {
  type        = string
  default     = null
  description = "Where the image is built. [the default VPC's]"
}

variable "source_archive" {
  type        = string
  default     = "/tmp/neuron-pd.tar.gz"
  description = "neuron-pd's checkout, from git archive."
}

variable "source_parameter" {
  type        = string
  default     = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
  description = "The SSM parameter that holds the DLAMI's id: the latest one."
}

variable "source_name" {
  type        = string
  default     = ""
  description = "A DLAMI by its exact name instead, so that a build can be repeated."
}

variable "instance_type" {
  type        = string
  default     = "trn2.3xlarge"
  description = "Where the image is built and tested. neuron-pd doctor wants accelerators."
}

variable "doctor" {
  type        = bool
  default     = true
  description = "Test the image with neuron-pd doctor before it is made. Off where instance_type has no accelerator."
}

variable "volume_gib" {
  type    = number
  default = 512
}

data "amazon-parameterstore" "latest" {
  name   = var.source_parameter
  region = var.region
}

data "amazon-ami" "named" {
  region      = var.region
  owners      = ["amazon"]
  most_recent = true
  filters = {
    name = var.source_name == "" ? "Deep Learning AMI Neuron *(Ubuntu 24.04)*" : var.source_name
  }
}

locals {
  source_ami = var.source_name == "" ? data.amazon-parameterstore.latest.value : data.amazon-ami.named.id
  built      = formatdate("YYYYMMDD-hhmm", timestamp())
}

source "amazon-ebs" "neuron" {
  region        = var.region
  subnet_id     = var.subnet_id
  source_ami    = local.source_ami
  instance_type = var.instance_type
  ssh_username  = "ubuntu"
  ami_name      = "neuron-pd-${local.built}"

  imds_support = "v2.0"
  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }
  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = var.volume_gib
    volume_type           = "gp3"
    delete_on_termination = true
  }
  tags = {
    Name       = "neuron-pd-${local.built}"
    source_ami = local.source_ami
  }
}

build {
  sources = ["source.amazon-ebs.neuron"]

  provisioner "file" {
    source      = var.source_archive
    destination = "/tmp/neuron-pd.tar.gz"
  }

  provisioner "shell" {
    inline = [
      "cloud-init status --wait",
      "mkdir /tmp/neuron-pd",
      "tar --extract --gzip --file /tmp/neuron-pd.tar.gz --directory /tmp/neuron-pd",
      "sudo bash /tmp/neuron-pd/launch/image/provision.sh neuron",
    ]
  }

  provisioner "shell" {
    inline = [
      var.doctor ? "sudo env $(sudo cat /etc/neuron-pd/machine.env) /opt/neuron-pd/bin/neuron-pd doctor" : "true",
      "rm -rf /tmp/neuron-pd /tmp/neuron-pd.tar.gz",
    ]
  }
}
