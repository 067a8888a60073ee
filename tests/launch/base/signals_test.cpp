#include "hasten/launch/base/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

std::string error_of(const std::string& names) {
  try {
    signals_of(names);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Signals, AreReadFromAList) {
  EXPECT_THAT(signals_of("SIGTERM,sigusr2, INT"), ::testing::ElementsAre(SIGTERM, SIGUSR2, SIGINT));
}

TEST(Signals, AMisspeltNameIsAnErrorWithAGuess) {
  EXPECT_EQ(error_of("SIGTERN"),
            "[launch] 'SIGTERN' is no signal, did you mean 'SIGTERM'? Expected a list like SIGTERM,SIGUSR1.");
  EXPECT_EQ(error_of("15"), "[launch] '15' is no signal. Expected a list like SIGTERM,SIGUSR1.");
}

TEST(Signals, WhatNobodyCanHandleIsRefused) {
  EXPECT_EQ(error_of("SIGTERM,SIGKILL"), "[launch] SIGKILL cannot be handed on to the workers. Leave it out.");
  EXPECT_EQ(problem_with_signal("kill"), "SIGKILL cannot be handed on to the workers. Leave it out");
  EXPECT_EQ(problem_with_signal("usr1"), "");
}

TEST(Signals, OneWithoutANameIsNumbered) {
  EXPECT_EQ(signal_name(40), "signal 40");
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
}

}  // namespace
}  // namespace hasten::launcher
