// Wall-clock time of a program's sections, summed over steps.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "program/program.h"

namespace twostroke {

// Sections with the same label are one line. Units: seconds.
struct ProfileLine {
  std::string label;
  double seconds;
  int64_t calls;
};

class Profile {
 public:
  explicit Profile(size_t num_sections) : totals_(num_sections) {}

  // Time runs from here or from the end of the last section to the end of the next.
  void start() { mark_ = Clock::now(); }
  void end_section(size_t section);
  // The lines since the last call, in the order of the sections.
  std::vector<ProfileLine> take(const std::vector<Section>&);

 private:
  using Clock = std::chrono::steady_clock;
  struct Total {
    double seconds = 0;
    int64_t calls = 0;
  };

  std::vector<Total> totals_;  // by section
  Clock::time_point mark_;
};

}  // namespace twostroke
