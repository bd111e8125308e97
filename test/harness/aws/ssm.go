package aws

import (
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	ssmtypes "github.com/aws/aws-sdk-go-v2/service/ssm/types"
)

var ssmActions = map[string]action{"GetParameter": call((*Server).getParameter)}

func (s *Server) getParameter(in *ssm.GetParameterInput) (*ssm.GetParameterOutput, error) {
	text, ok := s.parameters[value(in.Name)]
	if !ok {
		return nil, badRequest("ParameterNotFound", "Parameter "+value(in.Name)+" not found.")
	}
	return &ssm.GetParameterOutput{Parameter: &ssmtypes.Parameter{Name: in.Name, Value: &text, Type: ssmtypes.ParameterTypeString, Version: 1}}, nil
}
