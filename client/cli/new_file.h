// What `get` makes in the file system. A file gets its name only when it is whole; until then, and when
// the command fails or is ended by a signal, nothing of it stays: RemoveUnfinishedOnSignals sees to the
// signals. All of it belongs to the thread that called that.
#pragma once

#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::cli {

// SIGINT, SIGTERM and SIGHUP remove the unfinished files and directories below, then end the process as
// that signal does, so that a shell sees it. A signal that is ignored (nohup, a job in the background)
// stays ignored. Called by the main thread, before there are others.
void RemoveUnfinishedOnSignals();

struct Unfinished;  // what a signal removes

// `path`, or what it leads to if it is a symbolic link, which then stays. NOT_FOUND: it leads nowhere.
StatusOr<std::string> BehindLink(const std::string& path);

// Beside the file that it becomes, under another name. It has the mode, and where that is allowed the owner,
// of a file whose place it takes.
class NewFile {
 public:
  // `path` is not a link.
  static StatusOr<NewFile> Begin(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();  // removes it unless it was published

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  Status Close();    // its bytes are on disk then; nothing more is written
  Status Publish();  // after Close: takes the name, and the place of a file that had it
  // Of each in turn. A signal waits until all have: it finds the old files or the new. An error says how
  // many of them are new.
  static Status PublishAll(std::vector<NewFile>* files);

 private:
  NewFile() = default;
  std::string path_, temporary_;
  Unfinished* unfinished_ = nullptr;  // null: there is nothing to remove
  UniqueFd fd_;
};

// Directories on the way to files. Those that it made go again unless Keep is called.
class NewDirectories {
 public:
  NewDirectories() = default;
  NewDirectories(const NewDirectories&) = delete;
  ~NewDirectories();

  Status Make(const std::string& path);  // with its parents; one that is there is fine
  bool made_any() const { return !made_.empty(); }
  void Keep();

 private:
  Status MakeOne(const std::string& path);
  std::vector<Unfinished*> made_;
};

}  // namespace cairn::cli
