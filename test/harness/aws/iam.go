package aws

import (
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

var iamActions = map[string]action{
	"AddRoleToInstanceProfile":      call((*Server).addRoleToInstanceProfile),
	"CreateInstanceProfile":         call((*Server).createInstanceProfile),
	"DeleteInstanceProfile":         call((*Server).deleteInstanceProfile),
	"GetInstanceProfile":            call((*Server).getInstanceProfile),
	"GetRole":                       call((*Server).getRole),
	"ListInstanceProfiles":          call((*Server).listInstanceProfiles),
	"RemoveRoleFromInstanceProfile": call((*Server).removeRoleFromInstanceProfile),
	"TagInstanceProfile":            call((*Server).tagInstanceProfile),
}

var stsActions = map[string]action{"GetCallerIdentity": call((*Server).getCallerIdentity)}

func (*Server) getCallerIdentity(*sts.GetCallerIdentityInput) (*sts.GetCallerIdentityOutput, error) {
	return &sts.GetCallerIdentityOutput{Account: new(account), Arn: new(caller), UserId: new("AROAKARVE:local")}, nil
}

// NodeRole returns the name of the nodes' IAM role. An instance profile has the same name, so an EC2NodeClass can use either.
func (s *Server) NodeRole() string { return "KarpenterNodeRole-" + s.config.ClusterName }

func noEntity(what, name string) failure {
	return failure{http.StatusNotFound, "NoSuchEntity", what + " " + name + " cannot be found."}
}

// role returns the only role.
func (s *Server) role() iamtypes.Role {
	name := s.NodeRole()
	return iamtypes.Role{
		RoleName: &name, RoleId: new("AROANODES"), Path: new("/"), Arn: new("arn:aws:iam::" + account + ":role/" + name), CreateDate: new(s.now()),
	}
}

// roleNamed returns the role if it has the name.
func (s *Server) roleNamed(name *string) (iamtypes.Role, error) {
	if value(name) != s.NodeRole() {
		return iamtypes.Role{}, noEntity("The role with name", value(name))
	}
	return s.role(), nil
}

func (s *Server) getRole(in *iam.GetRoleInput) (*iam.GetRoleOutput, error) {
	role, err := s.roleNamed(in.RoleName)
	if err != nil {
		return nil, err
	}
	return &iam.GetRoleOutput{Role: &role}, nil
}

func (s *Server) profile(name *string) (*iamtypes.InstanceProfile, error) {
	p, ok := s.profiles[value(name)]
	if !ok {
		return nil, noEntity("Instance Profile", value(name))
	}
	return p, nil
}

func (s *Server) newProfile(name, path string, tags []iamtypes.Tag) *iamtypes.InstanceProfile {
	p := &iamtypes.InstanceProfile{
		InstanceProfileName: &name, InstanceProfileId: new(s.nextID("AIPA")), Path: &path, Roles: []iamtypes.Role{}, Tags: tags, CreateDate: new(s.now()),
		Arn: new("arn:aws:iam::" + account + ":instance-profile" + path + name),
	}
	s.profiles[name] = p
	return p
}

func (s *Server) getInstanceProfile(in *iam.GetInstanceProfileInput) (*iam.GetInstanceProfileOutput, error) {
	p, err := s.profile(in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	return &iam.GetInstanceProfileOutput{InstanceProfile: copied(p)}, nil
}

// copied returns a copy of the profile, which can be encoded while others change the profile.
func copied(p *iamtypes.InstanceProfile) *iamtypes.InstanceProfile {
	c := *p
	c.Roles, c.Tags = slices.Clone(p.Roles), slices.Clone(p.Tags)
	return &c
}

func (s *Server) createInstanceProfile(in *iam.CreateInstanceProfileInput) (*iam.CreateInstanceProfileOutput, error) {
	if _, ok := s.profiles[value(in.InstanceProfileName)]; ok {
		return nil, failure{http.StatusConflict, "EntityAlreadyExists", "Instance Profile " + value(in.InstanceProfileName) + " already exists."}
	}
	path := "/"
	if in.Path != nil {
		path = *in.Path
	}
	return &iam.CreateInstanceProfileOutput{InstanceProfile: copied(s.newProfile(value(in.InstanceProfileName), path, in.Tags))}, nil
}

func (s *Server) deleteInstanceProfile(in *iam.DeleteInstanceProfileInput) (*iam.DeleteInstanceProfileOutput, error) {
	p, err := s.profile(in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	if len(p.Roles) > 0 {
		return nil, failure{http.StatusConflict, "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first."}
	}
	delete(s.profiles, *p.InstanceProfileName)
	return &iam.DeleteInstanceProfileOutput{}, nil
}

func (s *Server) addRoleToInstanceProfile(in *iam.AddRoleToInstanceProfileInput) (*iam.AddRoleToInstanceProfileOutput, error) {
	p, err := s.profile(in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	role, err := s.roleNamed(in.RoleName)
	if err != nil {
		return nil, err
	}
	if len(p.Roles) > 0 {
		return nil, failure{http.StatusConflict, "LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1"}
	}
	p.Roles = append(p.Roles, role)
	return &iam.AddRoleToInstanceProfileOutput{}, nil
}

func (s *Server) removeRoleFromInstanceProfile(in *iam.RemoveRoleFromInstanceProfileInput) (*iam.RemoveRoleFromInstanceProfileOutput, error) {
	p, err := s.profile(in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	p.Roles = slices.DeleteFunc(p.Roles, func(r iamtypes.Role) bool { return *r.RoleName == value(in.RoleName) })
	return &iam.RemoveRoleFromInstanceProfileOutput{}, nil
}

func (s *Server) tagInstanceProfile(in *iam.TagInstanceProfileInput) (*iam.TagInstanceProfileOutput, error) {
	p, err := s.profile(in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, t := range slices.Concat(p.Tags, in.Tags) {
		tags[value(t.Key)] = value(t.Value)
	}
	p.Tags = nil
	for _, key := range sortedKeys(tags) {
		p.Tags = append(p.Tags, iamtypes.Tag{Key: &key, Value: new(tags[key])})
	}
	return &iam.TagInstanceProfileOutput{}, nil
}

func (s *Server) listInstanceProfiles(in *iam.ListInstanceProfilesInput) (*iam.ListInstanceProfilesOutput, error) {
	out := &iam.ListInstanceProfilesOutput{InstanceProfiles: []iamtypes.InstanceProfile{}}
	for _, name := range sortedKeys(s.profiles) {
		if p := s.profiles[name]; strings.HasPrefix(*p.Path, value(in.PathPrefix)) {
			out.InstanceProfiles = append(out.InstanceProfiles, *copied(p))
		}
	}
	return out, nil
}
