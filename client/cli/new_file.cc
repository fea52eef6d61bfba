#include "client/cli/new_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::cli {

struct Unfinished {
  std::string path;
  bool is_directory = false;
  std::atomic<bool> there = true;
  Unfinished* next = nullptr;
};

namespace {

constexpr int kMostTries = 8;  // to find a name that nothing has
constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The newest first, so that files go before their directories. Nothing is ever taken out: the handler may
// walk it at any time.
std::atomic<Unfinished*> newest_unfinished = nullptr;
pthread_t main_thread;

void Remove(const Unfinished& of) {
  if (of.is_directory) {
    rmdir(of.path.c_str());
  } else {
    unlink(of.path.c_str());
  }
}

// On the main thread alone: it is the one that makes files, so it makes none while this runs.
void RemoveAndDie(int number) {
  if (pthread_equal(pthread_self(), main_thread) == 0) {
    pthread_kill(main_thread, number);
    return;
  }
  for (const Unfinished* of = newest_unfinished; of != nullptr; of = of->next) {
    if (of->there) Remove(*of);
  }
  std::signal(number, SIG_DFL);
  std::raise(number);  // arrives when this returns
}

Unfinished* Remember(const std::string& path, bool is_directory) {
  auto* fresh = new Unfinished{path, is_directory};
  fresh->next = newest_unfinished;
  newest_unfinished = fresh;
  return fresh;
}

// By chance: one that was killed may have left its part, under any number of a process.
std::string PartOf(const std::string& path) {
  uint32_t number = 0;
  // Of so few bytes getrandom gives all; where it fails the clock will do.
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    number = static_cast<uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  return absl::StrCat(path, ".part-", absl::Hex(number, absl::kZeroPad8));
}

// Between making something and remembering it no signal arrives.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int number : kEndingSignals) sigaddset(&ending, number);
    pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  SignalsWait(const SignalsWait&) = delete;
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

void RemoveUnfinishedOnSignals() {
  main_thread = pthread_self();
  for (const int number : kEndingSignals) {
    struct sigaction before {};
    if (sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    struct sigaction remove {};
    remove.sa_handler = RemoveAndDie;
    remove.sa_flags = SA_RESTART;
    sigemptyset(&remove.sa_mask);
    for (const int other : kEndingSignals) sigaddset(&remove.sa_mask, other);
    sigaction(number, &remove, nullptr);
  }
}

StatusOr<std::string> BehindLink(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> end(realpath(path.c_str(), nullptr), std::free);
  if (end != nullptr) return std::string(end.get());
  if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("FILE: ", path));
  return absl::NotFoundError(absl::StrCat("FILE: ", path, " is a link that leads nowhere"));
}

StatusOr<NewFile> NewFile::Begin(const std::string& path) {
  NewFile file;
  file.path_ = path;
  struct stat old {};
  const bool replaces = stat(path.c_str(), &old) == 0;
  const SignalsWait wait;
  int error = EEXIST;
  for (int tries = 0; error == EEXIST && tries < kMostTries; ++tries) {
    file.temporary_ = PartOf(path);
    file.fd_.Reset(open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                        replaces ? 0600 : 0666));
    error = file.fd_.valid() ? 0 : errno;
  }
  if (error != 0) {
    return ErrnoStatus(error, absl::StrCat("FILE: ", path, ", made as ", file.temporary_));
  }
  file.unfinished_ = Remember(file.temporary_, /*is_directory=*/false);
  // Before it has a byte. Where this is refused it stays its maker's alone.
  if (replaces) {
    const bool same = old.st_uid == geteuid() && old.st_gid == getegid();
    if (!same) (void)!fchown(file.fd_.get(), old.st_uid, old.st_gid);
    (void)fchmod(file.fd_.get(), old.st_mode & 0777);
  }
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      unfinished_(std::exchange(other.unfinished_, nullptr)),
      fd_(std::move(other.fd_)) {}

NewFile::~NewFile() {
  if (unfinished_ == nullptr) return;
  Remove(*unfinished_);
  unfinished_->there = false;
}

Status NewFile::Close() {
  if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
  if (close(fd_.Release()) != 0) return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
  return absl::OkStatus();
}

Status NewFile::Publish() {
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
  }
  unfinished_->there = false;
  unfinished_ = nullptr;
  return absl::OkStatus();
}

Status NewFile::PublishAll(std::vector<NewFile>* files) {
  const SignalsWait wait;
  size_t done = 0;
  for (NewFile& file : *files) {
    const Status status = file.Publish();
    if (!status.ok() && done > 0) {
      return Status(status.code(), absl::StrCat(status.message(), "; ", done, " of ", files->size(),
                                                " files were replaced before it"));
    }
    CAIRN_RETURN_IF_ERROR(status);
    ++done;
  }
  return absl::OkStatus();
}

Status NewDirectories::MakeOne(const std::string& path) {
  const SignalsWait wait;
  if (mkdir(path.c_str(), 0777) == 0) {
    made_.push_back(Remember(path, /*is_directory=*/true));
    return absl::OkStatus();
  }
  const int error = errno;
  struct stat status {};
  if (error == EEXIST && stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("DIR: ", path, " is not a directory"));
  }
  return ErrnoStatus(error, absl::StrCat("DIR: ", path));
}

Status NewDirectories::Make(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    CAIRN_RETURN_IF_ERROR(MakeOne(path.substr(0, slash)));
  }
  return path.empty() || path.back() == '/' ? absl::OkStatus() : MakeOne(path);
}

NewDirectories::~NewDirectories() {
  while (!made_.empty()) {
    Remove(*made_.back());
    made_.back()->there = false;
    made_.pop_back();
  }
}

void NewDirectories::Keep() {
  for (Unfinished* made : made_) made->there = false;
  made_.clear();
}

}  // namespace cairn::cli
