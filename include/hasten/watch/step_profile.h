// StepProfile: profiles that another process asks for in this rank's page (hasten trace).
#pragma once

#include <memory>

#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"

namespace hasten::watch {

class StepProfile {
 public:
  StepProfile(std::shared_ptr<flight::Recorder> recorder, const process::Process& process);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  /// Called after each step, on the thread of the loop. Begins a profile that was asked for, and ends it when its steps
  /// are over. What goes wrong is the answer.
  /// Blocks: at the end of a profile, for its file.
  void after_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::watch
