package aws

import (
	"context"
	"crypto/md5" //nolint:gosec // SQS's checksum of a message's body; clients compare it.
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

var sqsActions = map[string]action{
	"DeleteMessage":  call((*Server).deleteMessage),
	"GetQueueUrl":    call((*Server).getQueueURL),
	"ReceiveMessage": receiveMessage,
	"SendMessage":    call((*Server).sendMessage),
}

// message is a message in the queue.
type message struct {
	id, body string
	sent     time.Time
	// hidden is the end of its visibility timeout.
	hidden time.Time
}

// event returns an EventBridge event as its rule puts it into the queue. https://docs.aws.amazon.com/eventbridge/latest/ref/events-structure.html
func (s *Server) event(source, detailType, resource string, detail map[string]any) string {
	raw, err := json.Marshal(map[string]any{
		"version": "0", "id": s.nextID("event"), "account": account, "region": s.config.Region, "time": s.now().UTC().Format(time.RFC3339),
		"source": source, "detail-type": detailType, "detail": detail,
		"resources": []string{resource},
	})
	if err != nil {
		panic(fmt.Sprintf("writing an event: %v", err)) // it contains only strings
	}
	return string(raw)
}

// send puts a message into the queue and wakes the receivers that wait.
func (s *Server) send(body string) *message {
	m := &message{id: s.nextID("message"), body: body, sent: s.now()}
	s.queue = append(s.queue, m)
	close(s.arrived)
	s.arrived = make(chan struct{})
	return m
}

func (s *Server) getQueueURL(in *sqs.GetQueueUrlInput) (*sqs.GetQueueUrlOutput, error) {
	if value(in.QueueName) != s.config.Queue {
		return nil, badRequest("QueueDoesNotExist", "The specified queue does not exist.")
	}
	return &sqs.GetQueueUrlOutput{QueueUrl: new(s.URL + "/" + account + "/" + s.config.Queue)}, nil
}

func (s *Server) sendMessage(in *sqs.SendMessageInput) (*sqs.SendMessageOutput, error) {
	if err := s.ours(in.QueueUrl); err != nil {
		return nil, err
	}
	m := s.send(value(in.MessageBody))
	return &sqs.SendMessageOutput{MessageId: &m.id, MD5OfMessageBody: new(checksum(m.body))}, nil
}

func (s *Server) deleteMessage(in *sqs.DeleteMessageInput) (*sqs.DeleteMessageOutput, error) {
	if err := s.ours(in.QueueUrl); err != nil {
		return nil, err
	}
	s.queue = slices.DeleteFunc(s.queue, func(m *message) bool { return m.id == value(in.ReceiptHandle) })
	return &sqs.DeleteMessageOutput{}, nil
}

func (s *Server) ours(url *string) error {
	if short(value(url), "/") != s.config.Queue {
		return badRequest("QueueDoesNotExist", "The specified queue does not exist.")
	}
	return nil
}

// receiveMessage waits for messages for as long as the caller wants. It must not lock the region meanwhile.
func receiveMessage(ctx context.Context, s *Server, decode func(any) error) (any, error) {
	var in sqs.ReceiveMessageInput
	if err := decode(&in); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.WaitTimeSeconds)*time.Second)
	defer cancel()
	for {
		out, arrived, err := s.receive(&in)
		if err != nil || len(out.Messages) > 0 {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, nil
		case <-arrived:
		}
	}
}

// receive returns the available messages, and a channel that is closed when another arrives.
func (s *Server) receive(in *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ours(in.QueueUrl); err != nil {
		return nil, nil, err
	}
	out := &sqs.ReceiveMessageOutput{Messages: []sqstypes.Message{}}
	for _, m := range s.queue {
		if m.hidden.After(s.now()) || len(out.Messages) == max(1, int(in.MaxNumberOfMessages)) {
			continue
		}
		m.hidden = s.now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
		out.Messages = append(out.Messages, sqstypes.Message{
			MessageId: &m.id, ReceiptHandle: &m.id, Body: &m.body, MD5OfBody: new(checksum(m.body)),
			Attributes: map[string]string{"SentTimestamp": fmt.Sprint(m.sent.UnixMilli())},
		})
	}
	return out, s.arrived, nil
}

func checksum(body string) string {
	sum := md5.Sum([]byte(body)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}
