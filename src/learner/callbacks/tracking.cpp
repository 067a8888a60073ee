// See callbacks/tracking.h.
#include "hasten/learner/callbacks/tracking.h"

#include "hasten/learner/learner.h"
#include "hasten/learner/recorder.h"

namespace hasten::learner {

void Tracking::before_train(Learner& /*learn*/) { trained_ = true; }

void Tracking::after_batch(Learner& learn) {
  if (!learn.training() || learn.is_unwinding()) return;
  ++step;
  if (options.every == 0 || step % options.every != 0 || !learn.accelerator().is_main_process()) return;
  TrackedValues values{{"train_loss", learn.recorder().smooth_loss()}};
  if (options.hypers) {
    for (const auto& name : learn.hypers().names()) {
      const auto groups = learn.hypers().get(name);
      for (size_t i = 0; i < groups.size(); ++i) values.emplace_back(text(name, "_", i), groups[i]);
    }
  }
  sink(values, step);
}

void Tracking::after_epoch(Learner& learn) {
  if (!std::exchange(trained_, false) || learn.is_unwinding() || !learn.accelerator().is_main_process()) return;
  const auto& row = learn.recorder().final_record();
  const auto columns = learn.recorder().columns();
  TrackedValues values{{"epoch", static_cast<double>(learn.epoch())}};
  for (size_t i = 0; i < std::min(row.size(), columns.size()); ++i) values.emplace_back(columns[i], row[i]);
  sink(values, step);
}

}  // namespace hasten::learner
