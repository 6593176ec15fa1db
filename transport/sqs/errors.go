package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/keylanes/keylanes/transport"
)

// class is what an error means for what comes next. It is the only place where
// this package decides whether trying again helps.
type class uint8

const (
	classPassing   class = iota // network, 5xx, timeout, unknown: try again; whether it was done is unknown
	classThrottled              // slow down, then try again; it was not done
	classGone                   // the receipt is no longer good
	classRefused                // this entry is wrong, or at a limit: trying again can't help
	classNoQueue                // the queue isn't there
	classDenied                 // credentials or permission
)

// errNotAnswered is the error of an entry that the reply of its call left out.
var errNotAnswered = errors.New("the reply doesn't mention this entry")

// classify decides by type first and by normalised code second: servers differ
// in the prefixes that they put before a code.
func classify(err error) class {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return classPassing
	case is[*types.ReceiptHandleIsInvalid](err), is[*types.MessageNotInflight](err):
		return classGone
	case is[*types.QueueDoesNotExist](err), is[*types.QueueDeletedRecently](err), is[*types.InvalidAddress](err):
		return classNoQueue
	case is[*types.RequestThrottled](err), is[*types.OverLimit](err), is[*types.KmsThrottled](err):
		return classThrottled
	case is[*types.KmsAccessDenied](err), is[*types.KmsDisabled](err), is[*types.KmsInvalidState](err),
		is[*types.KmsNotFound](err), is[*types.KmsOptInRequired](err), is[*types.KmsInvalidKeyUsage](err):
		return classDenied
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		if c, ok := classifyCode(api.ErrorCode()); ok {
			return c
		}
	}
	var status interface{ HTTPStatusCode() int }
	if errors.As(err, &status) {
		switch s := status.HTTPStatusCode(); {
		case s == http.StatusTooManyRequests:
			return classThrottled
		case s == http.StatusForbidden || s == http.StatusUnauthorized:
			return classDenied
		}
	}
	return classPassing
}

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// normalCode cuts an error code down to what AWS documents: it comes as
// "com.amazonaws.sqs#X", "AWS.SimpleQueueService.X" and "XException" too.
func normalCode(code string) string {
	code = code[strings.LastIndexByte(code, '#')+1:]
	code = code[strings.LastIndexByte(code, '.')+1:]
	return strings.TrimSuffix(code, "Exception")
}

var codes = map[string]class{
	"ReceiptHandleIsInvalid": classGone, "MessageNotInflight": classGone,

	"QueueDoesNotExist": classNoQueue, "NonExistentQueue": classNoQueue, "QueueDeletedRecently": classNoQueue, "InvalidAddress": classNoQueue,

	"RequestThrottled": classThrottled, "Throttling": classThrottled, "Throttled": classThrottled,
	"TooManyRequests": classThrottled, "RequestLimitExceeded": classThrottled, "BandwidthLimitExceeded": classThrottled,
	"SlowDown": classThrottled, "OverLimit": classThrottled, "KmsThrottled": classThrottled, "LimitExceeded": classThrottled,

	"AccessDenied": classDenied, "Access Denied": classDenied, "InvalidClientTokenId": classDenied, "UnrecognizedClient": classDenied,
	"SignatureDoesNotMatch": classDenied, "IncompleteSignature": classDenied, "InvalidSignature": classDenied,
	"ExpiredToken": classDenied, "TokenRefreshRequired": classDenied,
	"MissingAuthenticationToken": classDenied, "InvalidSecurity": classDenied, "OptInRequired": classDenied, "NotAuthorized": classDenied,
	"KmsAccessDenied": classDenied, "KmsDisabled": classDenied, "KmsInvalidState": classDenied, "KmsNotFound": classDenied,
	"KmsOptInRequired": classDenied, "KmsInvalidKeyUsage": classDenied,

	"InvalidParameterValue": classRefused, "InvalidMessageContents": classRefused, "InvalidAttributeValue": classRefused,
	"MissingParameter": classRefused, "UnsupportedOperation": classRefused, "InvalidParameterCombination": classRefused,
	"InvalidBatchEntryId": classRefused, "BatchEntryIdsNotDistinct": classRefused, "TooManyEntriesInBatchRequest": classRefused,
	"BatchRequestTooLong": classRefused, "EmptyBatchRequest": classRefused, "InvalidIdFormat": classRefused, "Validation": classRefused,
	"InvalidAction": classRefused, "MalformedQueryString": classRefused,

	"InternalError": classPassing, "InternalFailure": classPassing, "ServiceUnavailable": classPassing, "RequestTimeout": classPassing,
	"RequestExpired": classPassing, "RequestTimeTooSkewed": classPassing, "RequestInTheFuture": classPassing,
}

func classifyCode(code string) (class, bool) {
	c, ok := codes[normalCode(code)]
	return c, ok
}

// entryError is the error of one entry of a batch.
type entryError struct {
	code, message string
	class         class
}

func (e *entryError) Error() string { return fmt.Sprintf("%s: %s", e.code, e.message) }

// newEntryError classifies a Failed entry. An unknown code is the sender's
// fault or not, and that decides whether trying again can help.
func newEntryError(f types.BatchResultErrorEntry) *entryError {
	e := &entryError{code: str(f.Code), message: str(f.Message)}
	var ok bool
	if e.class, ok = classifyCode(e.code); !ok && f.SenderFault {
		e.class = classRefused
	}
	return e
}

func classOf(err error) class {
	var e *entryError
	if errors.As(err, &e) {
		return e.class
	}
	return classify(err)
}

// explain makes of an error that somebody has to act upon a
// *transport.FatalError with its fix; others stay as they are.
func explain(op string, err error) error {
	fix := ""
	switch classOf(err) {
	case classNoQueue:
		fix = "create the queue, or check its name, the account and the client's region"
	case classDenied:
		fix = "check that the credentials are valid and not expired, and that the policy allows " + actionsNeeded
	case classRefused:
		fix = "see what SQS says, and the queue's settings"
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
	return &transport.FatalError{Op: op, Fix: fix, Err: err}
}

// actionsNeeded are the IAM actions that this package uses.
const actionsNeeded = "sqs:GetQueueUrl and, for a subscription, sqs:GetQueueAttributes, sqs:ReceiveMessage, sqs:DeleteMessage and " +
	"sqs:ChangeMessageVisibility, for a publisher sqs:SendMessage, and kms:Decrypt and kms:GenerateDataKey for the key of an encrypted queue"

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
