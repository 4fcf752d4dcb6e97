//! The core holds live tasks only: what the shell loads of the others, by its rule (`relay/src/dispatcher/finished.rs`).

use baton_core::input::Input;

use crate::world::World;

impl World {
    pub(crate) fn load_finished(&self, input: &mut Input) {
        let Some(core) = &self.relay.core else {
            return;
        };
        let view = &self.relay.store.view;
        match input {
            Input::Submit(submit) => {
                submit.prior = view.prior(&submit.spec, |task| core.is_live(task))
            }
            Input::Cancel { task, finished, .. } | Input::Retry { task, finished, .. } => {
                if !core.is_live(*task) {
                    *finished = view.finished(*task);
                }
            }
            Input::Frame(frame) if !core.is_live(frame.re.task) => {
                frame.finished = view.finished(frame.re.task)
            }
            Input::SessionOpened { hello, .. } => {
                for active in &mut hello.active {
                    if !core.is_live(active.re.task) {
                        active.finished = view.finished(active.re.task);
                    }
                }
            }
            Input::RemoveFinished {
                tasks, finished, ..
            } => {
                let over = tasks.iter().filter(|(_, task)| !core.is_live(*task));
                finished.extend(over.filter_map(|(_, task)| view.removable(*task)));
            }
            Input::Frame(_)
            | Input::ForgetDaemons { .. }
            | Input::HoldDispatch { .. }
            | Input::Answer { .. }
            | Input::PauseTask { .. }
            | Input::UnpauseTask { .. }
            | Input::PauseScheduler { .. }
            | Input::UnpauseScheduler { .. }
            | Input::ReleaseInherited { .. }
            | Input::DrainDaemon { .. }
            | Input::UndrainDaemon { .. }
            | Input::ForgetDaemon { .. }
            | Input::Inspect { .. }
            | Input::ListDaemons { .. }
            | Input::SessionClosed { .. }
            | Input::Heartbeat { .. }
            | Input::Activity(_)
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => {}
        }
    }
}
