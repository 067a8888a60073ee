// The line between `hasten launch` and what it started on another machine: the standard input of a command such as ssh.
// The task goes through it, then signals, and a heartbeat. When it closes, everything at the far side ends. That needs
// nothing of ssh but a pipe, and the task is in no list of processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hasten::launcher {

/// Is the near side: runs `command` and sends it `task` (one line). Then it sends every signal that this process is
/// sent, and a heartbeat each second. Returns its exit code. To be called in a process that has just been forked;
/// changes its signal mask. Blocks: until the command has ended.
int hold_lifeline(const std::vector<std::string>& command, const std::string& task);

/// The way in which the far side notices that the near one has gone.
enum class RemoteSession {
  kFollowed,  ///< a lifeline of hold_lifeline's: its end, or 10 s of silence, is SIGKILL for the work
  kWatched,   ///< any open standard input: its end is SIGTERM for the work
};

/// Is the far side: runs `work` in a process of its own, with nothing on its standard input, and passes arriving
/// signals to it. For kFollowed the task is the first line, else `task`. Returns its exit code. Blocks: until it has
/// ended.
int follow_session(RemoteSession kind, const std::string& task,
                   const std::function<int(const std::string& task)>& work);

}  // namespace hasten::launcher
