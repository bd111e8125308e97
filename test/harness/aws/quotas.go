package aws

import (
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	quotatypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"
)

var quotaActions = map[string]action{"GetServiceQuota": call((*Server).getServiceQuota)}

// defaultQuota is the number of vCPUs of each quota of EC2 that was not set.
const defaultQuota = 768

// SetQuota sets a quota of EC2 by its code, such as L-DB2E81BA for G and VT instances on demand. It limits no launches: see [Server.Refuse].
func (s *Server) SetQuota(code string, vcpus float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas[code] = vcpus
}

func (s *Server) getServiceQuota(in *servicequotas.GetServiceQuotaInput) (*servicequotas.GetServiceQuotaOutput, error) {
	if value(in.ServiceCode) != "ec2" {
		return nil, badRequest("NoSuchResourceException", "The request failed because the specified service does not exist.")
	}
	vcpus, ok := s.quotas[value(in.QuotaCode)]
	if !ok {
		vcpus = defaultQuota
	}
	return &servicequotas.GetServiceQuotaOutput{Quota: &quotatypes.ServiceQuota{ServiceCode: in.ServiceCode, QuotaCode: in.QuotaCode, Value: &vcpus}}, nil
}
