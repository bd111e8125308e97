// Package quotas reads how many vCPUs an AWS account may run.
package quotas

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas/types"
	"github.com/aws/smithy-go"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/cloud/aws/api"
)

// Source reads the quotas.
type Source struct {
	Load func(context.Context) (*api.Clients, error)
}

// Read returns the quotas of [aws.Provider] with the limits of the account. It leaves out a quota that the account does not have. The error says what
// to do about it.
func (s *Source) Read(ctx context.Context) ([]catalog.Quota, error) {
	clients, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	var all []catalog.Quota
	for _, q := range aws.Provider.Quotas {
		answer, err := clients.Quotas.GetServiceQuota(ctx, &servicequotas.GetServiceQuotaInput{ServiceCode: new("ec2"), QuotaCode: &q.Code})
		if missing := (*types.NoSuchResourceException)(nil); errors.As(err, &missing) {
			continue
		}
		if err != nil {
			return nil, explained(err)
		}
		if answer.Quota == nil || answer.Quota.Value == nil {
			continue
		}
		q.VCPUs = int64(*answer.Quota.Value)
		all = append(all, q)
	}
	return all, nil
}

func explained(err error) error {
	var refused smithy.APIError
	if errors.As(err, &refused) && refused.ErrorCode() == "AccessDeniedException" {
		return errors.New("AWS denies GetServiceQuota: allow servicequotas:GetServiceQuota in the IAM policy of Karve's role")
	}
	return fmt.Errorf("the EC2 quotas cannot be read: %w", err)
}
