import sys

if __name__ == "__main__":
    try:
        from realchar.cli import main

        code = main()
    except KeyboardInterrupt:  # while the program itself is still being read
        code = 1
    sys.exit(code)
