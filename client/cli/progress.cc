#include "client/cli/progress.h"

#include <ostream>

#include "client/cli/format.h"

namespace cairn::cli {

Progress::Progress(std::ostream* err, bool terminal, const Clock* clock, std::string label,
                   uint64_t total)
    : err_(err),
      terminal_(terminal),
      clock_(clock),
      label_(Printable(label)),
      total_(total),
      started_(clock->Now()) {}

Progress::~Progress() {
  if (line_open_) *err_ << std::endl;
}

void Progress::Update(uint64_t done) {
  if (!terminal_) return;
  const MonotonicNanos now = clock_->Now();
  if (line_open_ && done < total_ && now - printed_ < kNanosPerSecond / 10) return;
  printed_ = now;
  line_open_ = true;
  // \r and "erase to the end": a shorter line leaves nothing of the longer one before it.
  *err_ << "\r" << ProgressLine(label_, done, total_, absl::Nanoseconds(now - started_)) << "\x1b[K"
        << std::flush;
}

}  // namespace cairn::cli
