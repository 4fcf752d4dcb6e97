//! The stable machine codes of ends and refusals. A code is never renamed; a daemon's unknown one is kept as sent.
//! Stored as text, so that a code that becomes known later means the same in records of before.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($variant,)*
            /// Not in this registry; kept as sent.
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

            /// Never fails: what is not registered becomes `Other`.
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
    /// Why a daemon would not take an offer. Each counts as a receipt: nothing was started.
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
    /// Whether it says nothing about the task: the offer does not count, and the task waits on as if there had been none.
    pub fn is_uncounted(&self) -> bool {
        self.concerns_machine() || *self == Self::WorkspaceBusy
    }

    /// Whether it speaks of the task: wherever it is offered, it cannot be run as it was submitted.
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

    /// Whether it speaks of the machine as it is now and not of the task: any other task would be refused as well, and
    /// this one may be taken later.
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
