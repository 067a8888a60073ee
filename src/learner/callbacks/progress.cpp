// See learner/callbacks/progress.h.
#include "hasten/learner/callbacks/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iomanip>

#include "hasten/learner/learner.h"
#include "hasten/learner/recorder.h"
#include "hasten/tracking/run/progress.h"

namespace hasten::learner {

void Progress::open(Learner& learn, const char* what) {
  bar_.reset();
  // On the stream of the table: a launcher gives each of a worker's streams a terminal of its own.
  if (!learn.shows_bar() || isatty(STDOUT_FILENO) == 0) return;
  bar_ = std::make_shared<tracking::Progress>(
      learn.n_iter() > 0 ? std::optional(learn.n_iter()) : std::nullopt,
      tracking::ProgressOptions{
          .description = text("epoch ", learn.epoch(), " ", what), .leave = false, .output = stdout});
}

void Progress::before_train(Learner& /*learn*/) {
  bar_.reset();
}
void Progress::before_validate(Learner& /*learn*/) {
  bar_.reset();
}
// The bar begins with the first batch, when the number of batches is known.
void Progress::after_batch(Learner& learn) {
  if (!bar_) open(learn, learn.training() ? "train" : "valid");
  if (bar_) bar_->advance();
}
void Progress::after_train(Learner& /*learn*/) {
  bar_.reset();
}
void Progress::after_validate(Learner& /*learn*/) {
  bar_.reset();
}
void Progress::after_cancel_train(Learner& /*learn*/) {
  bar_.reset();
}
void Progress::after_fit(Learner& /*learn*/) {
  bar_.reset();
}

void CSVLogger::write(Learner& learn, const std::string& line, bool truncate) const {
  const auto path = learn.options().path / fname;
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (truncate ? O_TRUNC : O_APPEND), 0666);
  const bool written =
      file >= 0 && ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size()) && fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written) {
    throw DataError(Origin{"learner"}, path.string(), "cannot write ", path.string(), ": ", std::strerror(reason),
                    ". Give CSVLogger another file, or free space.");
  }
}

void CSVLogger::before_fit(Learner& learn) {
  rows_ = 0;
  if (learn.logs())
    write(learn, join(learn.recorder().metric_names(), ",") + (learn.recorder().options().add_time ? ",time\n" : "\n"),
          !append);
}

void CSVLogger::after_epoch(Learner& learn) {
  const auto& values = learn.recorder().values();
  if (learn.is_unwinding() || !learn.logs() || static_cast<int64_t>(values.size()) == rows_) return;
  rows_ = static_cast<int64_t>(values.size());
  std::ostringstream line;
  line.imbue(std::locale::classic());
  line << learn.epoch() << std::setprecision(9);
  for (const double value : values.back()) line << ',' << value;
  write(learn,
        line.str() + (learn.recorder().options().add_time
                          ? text(",", std::fixed, std::setprecision(3), learn.recorder().epoch_seconds(), "\n")
                          : "\n"),
        false);
}

}  // namespace hasten::learner
