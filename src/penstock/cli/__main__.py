from penstock.cli.root import main

if __name__ == "__main__":
    main(prog_name="penstock")
