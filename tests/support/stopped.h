// A process that stands still, as by SIGSTOP.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/await.h"

namespace cairn::testing {

// True once none of its threads runs: one may answer another call before the signal reaches it.
[[nodiscard]] inline bool Stop(pid_t pid) {
  const std::filesystem::path tasks = absl::StrCat("/proc/", pid, "/task");
  return ::kill(pid, SIGSTOP) == 0 && Await([&] {
           for (const auto& task : std::filesystem::directory_iterator(tasks)) {
             std::string stat;
             std::getline(std::ifstream(task.path() / "stat"), stat);
             const size_t name_ends = stat.rfind(')');
             if (name_ends == std::string::npos || stat[name_ends + 2] != 'T') return false;
           }
           return true;
         });
}

}  // namespace cairn::testing
