#include "server/node/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::node {
namespace {

int64_t SequenceOf(const catalog::Row& row) {
  return std::visit([](const auto& r) { return r.sequence; }, row);
}

}  // namespace

Recorder::Recorder(const RecorderOptions& options, OpenCatalog open)
    : options_(options), open_(std::move(open)) {
  if (open_) thread_ = std::thread([this] { Run(); });
}

void Recorder::Put(std::vector<catalog::Row> rows) {
  if (!open_) return;
  MutexLock lock(&mu_);
  for (catalog::Row& row : rows) {
    std::string identity = catalog::RowIdentity(row);
    dirty_.insert_or_assign(std::move(identity), std::move(row));
  }
  wake_.NotifyOne();
}

std::string Recorder::State() const {
  if (!open_) return "off";
  MutexLock lock(&mu_);
  if (!problem_.ok()) {
    return absl::StrCat("sqlite: behind by ", dirty_.size(), " rows: ", problem_.message());
  }
  if (dirty_.empty() && !writing_) return "sqlite: up to date";
  return absl::StrCat("sqlite: writing, behind by ", dirty_.size(), " rows");
}

void Recorder::Flush(int deadline_ms) {
  if (!open_) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  MutexLock lock(&mu_);
  while ((!dirty_.empty() || writing_) && problem_.ok() && !stopping_) {
    if (!idle_.WaitUntil(&mu_, deadline)) return;
  }
}

void Recorder::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
    idle_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Recorder::Run() {
  pthread_setname_np(pthread_self(), "recorder");
  std::unique_ptr<catalog::Catalog> catalog;
  int backoff_ms = 0;
  for (;;) {
    std::vector<std::pair<std::string, catalog::Row>> taken;
    {
      MutexLock lock(&mu_);
      while (dirty_.empty() && !stopping_) wake_.Wait(&mu_);
      if (backoff_ms > 0) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(backoff_ms);
        while (!stopping_ && wake_.WaitUntil(&mu_, until)) {
        }
      }
      if (stopping_) return;
      while (!dirty_.empty() && taken.size() < static_cast<size_t>(options_.batch_rows)) {
        auto first = dirty_.begin();
        taken.emplace_back(first->first, std::move(first->second));
        dirty_.erase(first);
      }
      writing_ = true;
    }
    Status status;
    try {
      if (catalog == nullptr) {
        StatusOr<std::unique_ptr<catalog::Catalog>> opened = open_();
        status = opened.status();
        if (status.ok()) catalog = *std::move(opened);
      }
      if (status.ok()) {
        std::vector<catalog::Row> rows;
        rows.reserve(taken.size());
        for (const auto& [identity, row] : taken) rows.push_back(row);
        status = catalog->Apply(rows);
      }
    } catch (const std::exception& e) {
      status = absl::InternalError(e.what());
    }
    bool changed = false;
    {
      MutexLock lock(&mu_);
      changed = problem_.ok() != status.ok();
      problem_ = status;
      writing_ = false;
      if (!status.ok()) {
        for (auto& [identity, row] : taken) {
          // What came meanwhile is newer.
          auto [it, fresh] = dirty_.try_emplace(identity, row);
          if (!fresh && SequenceOf(it->second) < SequenceOf(row)) it->second = std::move(row);
        }
      }
      idle_.NotifyAll();
    }
    if (!status.ok()) {
      if (changed) LOG(WARNING) << "catalog is away, saving goes on without it: " << status;
      backoff_ms = std::clamp(backoff_ms * 2, options_.retry_min_ms, options_.retry_max_ms);
    } else {
      if (changed) LOG(INFO) << "catalog is back";
      backoff_ms = 0;
    }
  }
}

}  // namespace cairn::node
