//! The stable machine codes of ends and refusals. A code is never renamed; an unknown code of a
//! daemon is stored as sent. Codes are stored as text, so that a code registered later has the
//! same meaning in older records.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($variant,)*
            /// Not in this registry; stored as sent.
            Other(Arc<str>),
        }

        impl $name {
            /// Every registered code.
            pub const REGISTERED: &'static [&'static str] = &[$($text,)*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(text) => text,
                }
            }

            /// Never fails: an unregistered code becomes `Other`.
            pub fn parse(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(|text| Self::parse(&text))
            }
        }
    };
}

codes! {
    /// Why an attempt did not complete.
    FailureCode {
        DeliveryFailed = "delivery_failed",
        NotAccepted = "not_accepted",
        DaemonLostAttempt = "daemon_lost_attempt",
        LeaseExpired = "lease_expired",
        ProcessStartTimeout = "process_start_timeout",
        PromptWriteTimeout = "prompt_write_timeout",
        NoFirstEventTimeout = "no_first_event_timeout",
        NoVisibleEventTimeout = "no_visible_event_timeout",
        StreamIdleTimeout = "stream_idle_timeout",
        ToolIdleTimeout = "tool_idle_timeout",
        UserInputTimeout = "user_input_timeout",
        TaskDeadlineExceeded = "task_deadline_exceeded",
        SpawnFailed = "spawn_failed",
        ProviderMissing = "provider_missing",
        BadCwd = "bad_cwd",
        AgentExit = "agent_exit",
        NoResult = "no_result",
        ProviderError = "provider_error",
        ProviderAuth = "provider_auth",
        ProviderQuota = "provider_quota",
        ResumeFailed = "resume_failed",
        OutputInvalid = "output_invalid",
        ReceiptsMissing = "receipts_missing",
        RelayUnreachable = "relay_unreachable",
        CanceledByUser = "canceled_by_user",
        CanceledByOperator = "canceled_by_operator",
        DependencyFailed = "dependency_failed",
        OperatorForced = "operator_forced",
        DispatchLimit = "dispatch_limit",
        Starved = "starved",
    }
}

codes! {
    /// Why a daemon rejected an offer. Each code is also a termination receipt: nothing was
    /// started.
    RejectCode {
        AtCapacity = "at_capacity",
        LowMemory = "low_memory",
        Draining = "draining",
        UnsupportedAgent = "unsupported_agent",
        UnsupportedOption = "unsupported_option",
        BadCwd = "bad_cwd",
        WorkspaceBusy = "workspace_busy",
        DiskFull = "disk_full",
        Duplicate = "duplicate",
        Invalid = "invalid",
        NotConfirmed = "not_confirmed",
    }
}

impl RejectCode {
    /// Whether the reason is not the task. The offer is not counted, and the task waits as if
    /// there had been none.
    pub fn is_uncounted(&self) -> bool {
        self.concerns_machine() || *self == Self::WorkspaceBusy
    }

    /// Whether the reason is the task itself: no daemon can run it as submitted.
    pub fn concerns_task(&self) -> bool {
        match self {
            Self::UnsupportedOption => true,
            Self::AtCapacity
            | Self::LowMemory
            | Self::Draining
            | Self::DiskFull
            | Self::UnsupportedAgent
            | Self::BadCwd
            | Self::WorkspaceBusy
            | Self::Duplicate
            | Self::Invalid
            | Self::NotConfirmed
            | Self::Other(_) => false,
        }
    }

    /// Whether the reason is the current state of the machine: it would refuse any other task
    /// too, and may take this one later.
    pub fn concerns_machine(&self) -> bool {
        match self {
            Self::AtCapacity | Self::LowMemory | Self::Draining | Self::DiskFull => true,
            Self::UnsupportedAgent
            | Self::UnsupportedOption
            | Self::BadCwd
            | Self::WorkspaceBusy
            | Self::Duplicate
            | Self::Invalid
            | Self::NotConfirmed
            | Self::Other(_) => false,
        }
    }
}
