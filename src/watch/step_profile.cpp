// See step_profile.h.
#include "hasten/watch/step_profile.h"

#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/watch/profiler.h"

namespace hasten::watch {

using flight::WishState;

struct StepProfile::Impl {
  Impl(std::shared_ptr<flight::Recorder> recorder_, const process::Process& process_)
      : recorder(std::move(recorder_)), process(process_) {}

  void begin(const flight::TraceWish& wish) {
    file = std::filesystem::path(wish.folder) / text("rank_", process.rank(), ".json");
    steps_left = wish.steps + 1;  // the first one warms up
    try {
      profiler.emplace(process,
                       ProfileOptions{.schedule = ProfileSchedule{.warmup = 1, .active = wish.steps, .repeat = 1},
                                      .record_shapes = wish.with_shapes});
      recorder->answer_wish(WishState::kRecording);
    } catch (const std::exception& error) {
      recorder->answer_wish(WishState::kRefused, error.what());
    }
  }

  void next() {
    try {
      profiler->step();
      if (--steps_left > 0) return;
      profiler->export_chrome_trace(file.string());
      recorder->answer_wish(WishState::kWritten, file.string());
    } catch (const std::exception& error) {
      recorder->answer_wish(WishState::kRefused, error.what());
    }
    profiler.reset();
  }

  const std::shared_ptr<flight::Recorder> recorder;
  const process::Process process;
  std::optional<Profiler> profiler = {};
  std::filesystem::path file = {};
  int64_t steps_left = 0;
};

StepProfile::StepProfile(std::shared_ptr<flight::Recorder> recorder, const process::Process& process)
    : impl_(std::make_unique<Impl>(std::move(recorder), process)) {}

StepProfile::~StepProfile() = default;

void StepProfile::after_step() {
  if (!impl_->recorder) return;
  if (impl_->profiler) {
    impl_->next();
  } else if (const auto wish = impl_->recorder->new_wish()) {
    impl_->begin(*wish);
  }
}

}  // namespace hasten::watch
