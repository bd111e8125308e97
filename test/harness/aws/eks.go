package aws

import (
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/eks"
)

var eksActions = map[string]action{"DescribeCluster": call((*Server).describeCluster)}

// clusterOutput is the part of the response to DescribeCluster that clients read. The SDK's type has no JSON field names.
type clusterOutput struct {
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	Name                    string            `json:"name"`
	ARN                     string            `json:"arn"`
	Version                 string            `json:"version"`
	Endpoint                string            `json:"endpoint"`
	Status                  string            `json:"status"`
	CertificateAuthority    map[string]string `json:"certificateAuthority"`
	KubernetesNetworkConfig map[string]string `json:"kubernetesNetworkConfig"`
}

// serviceCIDR is the service CIDR of the local cluster.
const serviceCIDR = "10.96.0.0/16"

func (s *Server) describeCluster(in *eks.DescribeClusterInput) (*clusterOutput, error) {
	if value(in.Name) == "" || value(in.Name) != s.config.ClusterName {
		return nil, failure{http.StatusNotFound, "ResourceNotFoundException", "No cluster found for name: " + value(in.Name) + "."}
	}
	return &clusterOutput{cluster{
		Name:                    s.config.ClusterName,
		ARN:                     "arn:aws:eks:" + s.config.Region + ":" + account + ":cluster/" + s.config.ClusterName,
		Version:                 s.config.KubernetesVersion,
		Endpoint:                s.config.ClusterEndpoint,
		Status:                  "ACTIVE",
		CertificateAuthority:    map[string]string{"data": "Y2E="},
		KubernetesNetworkConfig: map[string]string{"serviceIpv4Cidr": serviceCIDR, "ipFamily": "ipv4"},
	}}, nil
}
